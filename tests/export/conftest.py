"""Finished runs for the exports: images and categories with awkward names, and images from an array."""

from types import SimpleNamespace

import pytest
from PIL import Image

from promptcal.api import fit

AWKWARD = {0: "a/b", 1: ".."}


@pytest.fixture(scope="session")
def awkward(tmp_path_factory, small_set, common_settings):
    """Images of the same name in two folders, one of them called test, and classes named a/b and .."""
    root = tmp_path_factory.mktemp("awkward")
    images, _, labels = small_set
    names = [f"{'test' if i % 2 else 'Ü b'}/{i // 2:03d}.png" for i in range(len(images))]
    for name, image in zip(names, images, strict=True):
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / "images" / name)
    named = {n: AWKWARD[y] for n, y in zip(names, labels.tolist(), strict=True) if y >= 0}
    run = fit(
        images=root / "images", labels=named, n_classes=4, method="kmeans", output=root / "run",
        overrides=common_settings, progress=False, report=False,
    )  # fmt: skip
    return SimpleNamespace(run=run, images=root / "images", names=names, labels=named)


@pytest.fixture(scope="session")
def from_array(tmp_path_factory, small_set, common_settings):
    """A finished run over an array: there are no files to link to."""
    images, _, labels = small_set
    return fit(
        images=images, labels=labels, n_classes=4, method="kmeans", output=tmp_path_factory.mktemp("array") / "run",
        overrides=common_settings, progress=False, report=False,
    )  # fmt: skip
