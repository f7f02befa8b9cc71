"""A small finished run of real images, and a real server for it."""

import shutil

import numpy as np
import pytest
from serving import served

from promptcal import fit
from promptcal.report.array_files import write_arrays


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, small_folder, common_settings):
    """48 images, two known classes and three new ones, by k-means on frozen features; a map is stored."""
    run = fit(
        images=small_folder, labels=small_folder / "labels.csv", n_classes=5, method="semi-supervised-kmeans",
        output=tmp_path_factory.mktemp("finished") / "run", overrides=common_settings, report=False, progress=False,
    )  # fmt: skip
    coordinates = np.random.default_rng(0).uniform(-1, 1, (48, 2)).astype(np.float32)
    write_arrays(run.directory.map_file, images=np.arange(48), coordinates=coordinates)
    return run.path


@pytest.fixture(scope="session")
def continued_run(tmp_path_factory, small_folder, small_set, quick_settings):
    """A trained run that continues another one and has the truth: it has every page of the report."""
    root = tmp_path_factory.mktemp("continued")
    common = {"truth": {f"{i:03d}.png": f"class {c}" for i, c in enumerate(small_set[1])}, "progress": False}
    labels = small_folder / "labels.csv"
    first = fit(
        images=small_folder, labels=labels, n_classes=4, output=root / "first", overrides=quick_settings, **common
    )  # fmt: skip
    found = first.assignments()
    named = {path: "owl" for path, c in zip(found.paths, found.clusters, strict=True) if c == 2}
    run = fit(
        images=small_folder, labels=named, start_from=first.path, output=root / "run",
        overrides=["affinity.epochs=1"], **common,
    )  # fmt: skip
    return run.path


@pytest.fixture
def run_path(finished_run, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture
def client(run_path):
    with served(run_path) as found:
        yield found


@pytest.fixture
def page(browser, client):
    """The page of the run, without errors in its console at the end."""
    from app_page import Page

    yield Page(browser, client)
    log = [entry["message"] for entry in browser.get_log("browser")]
    assert [message for message in log if "409 (Conflict)" not in message] == []  # of a name that exists
    assert browser.execute_script("return window.stolen") is None
