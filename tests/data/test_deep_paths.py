"""Folders nested deeper than Python's stack or the system's paths, and links to themselves."""

import os
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from promptcal import api
from promptcal.data import ImageSet
from promptcal.errors import DataError, RunError
from promptcal.run import RunDirectory
from promptcal.runtime.files import entries_below, remove_folder

LONG_NAME = "n" * 200


@contextmanager
def nested(folder, name, depth):
    """Folders ``name/name/...``, each in the one before, with an image in the last; they are removed at the end."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
        Image.new("RGB", (8, 8)).save("deep.png")
        yield
    finally:
        for left in ("deep.png", ".deep.png.0123456789ab.tmp"):
            if os.path.lexists(left):
                os.unlink(left)
        for _ in range(depth):
            os.chdir("..")
            os.rmdir(name)
        os.chdir(before)


DEPTH = sys.getrecursionlimit() + 200


def test_images_below_many_folders_are_found(tmp_path):
    with nested(tmp_path, "d", DEPTH):
        images = ImageSet.of(tmp_path)
        assert images.names == ["d/" * DEPTH + "deep.png"]
        assert images.image(0).size == (8, 8)
        assert len(ImageSet.of(tmp_path / "**" / "deep.png")) == 1
        assert api.check(images=tmp_path, progress=False).n_images == 1


def test_a_folder_whose_path_is_too_long_is_named_in_a_short_sentence(tmp_path):
    with nested(tmp_path, LONG_NAME, 25):
        with pytest.raises(DataError, match=r"the folder .* cannot be read \(File name too long\); move") as raised:
            ImageSet.of(tmp_path)
        assert len(str(raised.value)) < 300


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d", LONG_NAME])
def test_a_run_directory_with_such_folders(tmp_path, name):
    """Leftovers are found at any depth that a path can name; beyond it, the directory is refused."""
    with nested(tmp_path, name, DEPTH if name == "d" else 25):
        if name == LONG_NAME:
            with pytest.raises(RunError, match="cannot be read .*File name too long.*remove it"):
                RunDirectory(tmp_path).check_links()
            with pytest.raises(RunError, match="cannot be written to .*File name too long"):
                RunDirectory(tmp_path).locked().__enter__()
            return
        os.rename("deep.png", ".deep.png.0123456789ab.tmp")
        assert len(list(entries_below(tmp_path))) == DEPTH + 1
        with RunDirectory(tmp_path).locked():
            assert not os.path.exists(".deep.png.0123456789ab.tmp")
        RunDirectory(tmp_path).check_links()
        if sys.version_info < (3, 13):  # shutil.rmtree is recursive
            with pytest.raises(OSError, match="nested too deeply; remove it"):
                remove_folder(tmp_path / name)
    assert (tmp_path / ".lock").exists() == (name == "d")


def test_links_to_themselves_are_unreadable_images(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for name in ("loop.png", "loop", "unlabelled"):
        (tmp_path / name).symlink_to(name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    images = ImageSet.of(tmp_path)
    assert images.names == ["a.png", "loop.png"]
    assert [name for name, _ in api.check(images=tmp_path, progress=False).unreadable] == ["loop.png"]


@pytest.mark.parametrize("place", ["d/" * (DEPTH + 500), "circle"])
def test_outputs_that_cannot_be_made_are_a_sentence(tmp_path, monkeypatch, place):
    """Folders that are nested too deeply, and a link to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "photos").mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(tmp_path / "photos" / f"{i}.png")
    settings = ("model.backbone=vit_tiny_patch4_32.promptcal", "model.image_size=8", "clustering.n_init=2")
    given = {"images": "photos", "n_classes": 2, "overrides": settings, "quick": True, "progress": False}
    features = {"features": np.eye(4), "n_classes": 2, "progress": False}
    for call in (lambda: api.fit(**given, output=place), lambda: api.cluster(**features, output=place)):
        with pytest.raises(RunError, match="the output .* cannot be written to|Too many levels"):
            call()
    shards = {"source": "photos", "workers": 1, "backbone": "vit_tiny_patch4_32.promptcal", "progress": False}
    with pytest.raises(RunError, match="the output .* cannot be made"):
        api.embed(**shards, output=place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "photos"]
