"""A small finished run of real images, and a real server for it."""

import shutil

import pytest
from serving import served

from promptcal import fit


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, small_folder, common_settings):
    """48 images, two known classes and three new ones, by k-means on frozen features."""
    return fit(
        images=small_folder, labels=small_folder / "labels.csv", n_classes=5, method="semi-supervised-kmeans",
        output=tmp_path_factory.mktemp("finished") / "run", overrides=common_settings, report=False, progress=False,
    ).path  # fmt: skip


@pytest.fixture
def run_path(finished_run, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture
def client(run_path):
    with served(run_path) as found:
        yield found
