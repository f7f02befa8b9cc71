"""HEIC images: read with pillow-heif; without it they are reported, never ignored silently."""

import sys

import numpy as np
import pytest
from PIL import Image

from promptcal import check
from promptcal.data import ImageSet, read_labels
from promptcal.data.decoding import UnreadableImage, reads_heic
from promptcal.errors import DataError, LabelError, PromptCALWarning

COMMAND = r"pip install 'promptcal\[heic\]'"


@pytest.fixture
def without_pillow_heif(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reads_heic.cache_clear()
    yield
    reads_heic.cache_clear()


@pytest.fixture
def folder(tmp_path):
    """Two PNG and three HEIC files (their content is not read here)."""
    for i in range(2):
        Image.effect_noise((40, 40), 50).save(tmp_path / f"{i}.png")
    for name in ("a.heic", "b.HEIC", "c.heic"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic")
    return tmp_path


@pytest.mark.usefixtures("without_pillow_heif")
class TestWithoutThePackage:
    def test_a_folder_says_how_many_files_are_ignored(self, folder):
        with pytest.warns(PromptCALWarning, match=rf"^3 \.heic files are ignored; install pillow-heif .*{COMMAND}"):
            images = ImageSet.of(folder)
        assert images.names == ["0.png", "1.png"]
        assert images.ignored == ("a.heic", "b.HEIC", "c.heic")
        with pytest.warns(PromptCALWarning, match=r"^1 \.heic file is ignored"):
            ImageSet.of(folder / "[0-9b].*")

    def test_a_folder_of_nothing_else_is_an_error(self, folder):
        with pytest.raises(DataError, match=rf"no other images: 2 \.heic files are ignored; .*{COMMAND}"):
            ImageSet.of(folder / "*.heic")

    @pytest.mark.filterwarnings("ignore::promptcal.errors.PromptCALWarning")
    def test_check_lists_them(self, folder):
        report = check(images=folder, progress=False)
        found = next(finding for finding in report.warnings if finding.what == "ignored")
        assert found.amount == "3 files"
        assert found.cases[0].startswith("a.heic: install pillow-heif")
        assert report.as_dict()["ignored"] == ["a.heic", "b.HEIC", "c.heic"]

    @pytest.mark.filterwarnings("ignore::promptcal.errors.PromptCALWarning")
    def test_a_label_for_one_of_them_is_not_called_a_missing_image(self, folder):
        with pytest.raises(LabelError, match=f"label for b.HEIC.*{COMMAND}"):
            read_labels({"b.HEIC": "cat"}, ImageSet.of(folder))

    def test_a_listed_file_says_what_to_install(self, folder):
        with pytest.raises(UnreadableImage, match=COMMAND):
            ImageSet.of([folder / "a.heic"]).image(0)


def test_a_real_file_is_read_upright(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    gradient = np.zeros((48, 64, 3), np.uint8)
    gradient[..., 0] = np.linspace(0, 255, 64)
    gradient[24:, :, 1] = 200
    pillow_heif.from_pillow(Image.fromarray(gradient)).save(tmp_path / "a.heic", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show it upright
    pillow_heif.from_pillow(Image.fromarray(gradient)).save(tmp_path / "b.heic", quality=95, exif=exif.tobytes())
    Image.fromarray(gradient).save(tmp_path / "c.png")
    images = ImageSet.of(tmp_path)
    assert (images.names, images.ignored) == (["a.heic", "b.heic", "c.png"], ())
    assert np.abs(np.asarray(images.image(0)).astype(int) - gradient).mean() < 6
    assert images.image(1).size == (48, 64)
    assert np.abs(np.asarray(images.image(1)).astype(int) - np.rot90(gradient, -1)).mean() < 6
    assert check(images=tmp_path, progress=False).unreadable == []
