"""Small sources of each kind, and a finished run that assigns them."""

import io

import pytest
from PIL import Image
from shard_helpers import BACKBONE, write_tar

from promptcal import api
from promptcal.data import embedded_set


@pytest.fixture(scope="session")
def pictures():
    """40 encoded images by id."""
    images = embedded_set("test").images[::12][:40]
    return {f"{i:03d}": _png(image) for i, image in enumerate(images)}


def _png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def run(tmp_path_factory, small_folder):
    """A run of the included backbone without training: 4 categories, 2 of them known."""
    return api.fit(
        images=small_folder,
        labels=small_folder / "labels.csv",
        n_classes=4,
        backbone=BACKBONE,
        quick=True,
        output=tmp_path_factory.mktemp("runs") / "run",
        report=False,
        progress=False,
        overrides=("clustering.n_init=3",),
    )


@pytest.fixture
def tars(tmp_path, pictures):
    """Two tars of 20 images each, with another file beside each image."""
    folder = tmp_path / "tars"
    folder.mkdir()
    names = list(pictures)
    for i in range(2):
        write_tar(folder / f"{i}.tar", {name: pictures[name] for name in names[20 * i : 20 * i + 20]})
    return folder


@pytest.fixture
def image_folder(tmp_path, pictures):
    """The same images as files in two folders."""
    for i, (name, content) in enumerate(pictures.items()):
        file = tmp_path / "photos" / ("a" if i < 20 else "b") / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "photos"
