"""A real small run with names and labels that try to break the page, its report, and a real browser to open it in."""

import pytest
from hostile import CLASSES, HOSTILE_FILES, NAMED
from PIL import Image

from promptcal import fit, make_report


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory, small_set, whole_size_settings):
    """A finished run of 48 images; two known classes, two new ones, and the truth."""
    root = tmp_path_factory.mktemp("hostile")
    pixels, truth, labels = small_set
    names = [*HOSTILE_FILES, *(f"{i:03d}.png" for i in range(len(HOSTILE_FILES), len(pixels)))]
    for name, image in zip(names, pixels, strict=True):
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / "images" / name)
    return fit(
        images=root / "images",
        labels={name: CLASSES[y] for name, y in zip(names, labels, strict=True) if y >= 0},
        truth={name: CLASSES[y] for name, y in zip(names, truth, strict=True)},
        n_classes=4,
        output=root / "run",
        overrides=[*whole_size_settings, "warmup.epochs=2", "affinity.epochs=2"],
        progress=False,
    )


@pytest.fixture(scope="session")
def hostile_report(hostile_run):
    return make_report(run=hostile_run, progress=False)


@pytest.fixture(scope="session")
def continued_run(hostile_run):
    """A run that continues from it: half of new-2 is named, two images of new-1 are labelled as a known class."""
    found, root = hostile_run.assignments(), hostile_run.path.parent
    members = [[p for p, c in zip(found.paths, found.clusters, strict=True) if c == cluster] for cluster in range(4)]
    labels = dict.fromkeys(members[3][: len(members[3]) // 2 + 1], NAMED) | dict.fromkeys(members[2][:2], CLASSES[0])
    return fit(
        images=root / "images", labels=labels, start_from=hostile_run.path, output=root / "continued", progress=False,
        overrides=["affinity.epochs=0"],
    )  # fmt: skip


@pytest.fixture(scope="session")
def many_report(tmp_path_factory, small_set, common_settings):
    """Two known and twelve discovered clusters of wide photographs."""
    root = tmp_path_factory.mktemp("many")
    pixels, _, labels = small_set
    for i, image in enumerate(pixels):
        Image.fromarray(image).resize((200, 120), Image.Resampling.BICUBIC).save(root / f"{i:02d}.png")
    run = fit(
        images=root,
        labels={f"{i:02d}.png": f"Class {y}" for i, y in enumerate(labels) if y >= 0},
        n_classes=14,
        method="kmeans",
        output=tmp_path_factory.mktemp("many run") / "run 1",
        overrides=common_settings,
        progress=False,
    )
    return make_report(run=run, progress=False)
