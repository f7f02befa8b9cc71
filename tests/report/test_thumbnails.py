"""Sprite sheets: the right image in each tile, small enough, and a balanced selection if there are too many."""

import json

import numpy as np
import pytest
from PIL import Image

from promptcal.data import ImageSet, embedded_set
from promptcal.data.images import numbered_names
from promptcal.data.sources import FileSource, ImageSource
from promptcal.errors import RunError
from promptcal.report import thumbnails
from promptcal.report.selection import select_images
from promptcal.report.thumbnails import Thumbnails, make_thumbnails
from promptcal.run import Assignments


class Plain(ImageSource):
    """Images of one colour each, so that a tile shows which image it is; high and wide ones in turn."""

    def __init__(self, n, broken=()):
        self.colours = np.random.default_rng(0).integers(20, 235, (n, 3), dtype=np.uint8)
        self.broken = broken

    def shape(self, index):
        return (94, 64) if index % 2 else (40, 94)

    def open(self, index):
        if index in self.broken:
            raise OSError("gone")
        return Image.fromarray(np.broadcast_to(self.colours[index], (*self.shape(index), 3)).copy())


def plain(n, broken=()):
    return ImageSet(numbered_names(n), Plain(n, broken))


def test_every_tile_shows_its_whole_image_and_survives_the_disk(tmp_path):
    store, order = plain(230), np.random.default_rng(1).permutation(230)
    make_thumbnails(store, order).write(tmp_path)
    read = Thumbnails.read(tmp_path, 230)
    assert len(read.sheets) == 3
    assert np.array_equal(read.images, order)
    for position, image in enumerate(order):
        tile = np.asarray(read.tile(position), dtype=float)
        assert tile.shape == (*store.source.shape(image), 3)  # not cropped, and not enlarged
        # up to the border: neighbours of other colours do not bleed in
        assert np.abs(tile - store.source.colours[image]).max() < 14
    for folder, n_images in ((tmp_path / "nowhere", 230), (tmp_path, 229)):
        with pytest.raises(RunError, match=r"index\.json"):
            Thumbnails.read(folder, n_images)


def test_the_border_of_each_image_is_repeated_around_it(monkeypatch):
    """Also on the far sides of an image that is smaller than its tile."""
    sheets = []
    monkeypatch.setattr(thumbnails, "_encode", lambda canvas, *given: sheets.append(canvas.copy()) or (b"", 0))
    pixels = np.random.default_rng(0).integers(256, size=(2, 30, 20, 3), dtype=np.uint8)
    images = [pixels[0], pixels[1].transpose(1, 0, 2)]
    made = make_thumbnails(ImageSet.of(images), np.arange(2))
    for position, image in enumerate(images):
        far = [(made.margin, made.pitch - made.margin - length) for length in image.shape[:2]]
        tile = sheets[0][:, position * made.pitch : (position + 1) * made.pitch]
        assert np.array_equal(tile, np.pad(image, [*far, (0, 0)], mode="edge"))


def test_squares_of_older_runs_are_read(tmp_path):
    made = make_thumbnails(plain(3), np.arange(3))
    made.write(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    old = {"side": 60, "pitch": index["pitch"], "images": index["images"]}
    (tmp_path / "index.json").write_text(json.dumps(old))
    read = Thumbnails.read(tmp_path, 3)
    assert read.tile(1).size == (60, 60)
    assert read.layout()["margin"] == (index["pitch"] - 60) // 2
    (tmp_path / "index.json").write_text(json.dumps({**old, "side": 200}))
    with pytest.raises(RunError, match="overlap"):
        Thumbnails.read(tmp_path, 3)


def photo(width, height):
    """A real image, enlarged."""
    return Image.fromarray(embedded_set().images[5]).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (1, (900, 600), (252, 168)), (501, (600, 900), (125, 188)), (2501, (150, 150), (140, 140)),
        (1, (33, 20), (33, 20)),
    ],
)  # fmt: skip
def test_a_tile_is_the_whole_original_of_at_least_128_pixels(tmp_path, n, size, expected):
    """The network sees crops of 32 pixels of these; the thumbnail is made from the file."""
    photo(*size).save(tmp_path / "photo.jpg", quality=95)
    source = ImageSet([str(i) for i in range(n)], FileSource([tmp_path / "photo.jpg"] * n))
    tile = make_thumbnails(source, np.arange(n)).tile(n - 1)
    assert tile.size == expected
    exact = photo(*size).resize(expected, Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(tile, dtype=float) - np.asarray(exact)).mean() < 6


def test_a_turned_photograph_is_upright(tmp_path):
    picture = photo(640, 320)
    exif = picture.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    picture.save(tmp_path / "turned.jpg", exif=exif)
    assert make_thumbnails(ImageSet.of(tmp_path), np.array([0])).tile(0).size == (126, 252)


def test_an_unreadable_image_is_grey():
    made = make_thumbnails(plain(5, broken={0, 3}), np.arange(5))
    for position in (0, 3):
        assert np.abs(np.asarray(made.tile(position), dtype=float) - 128).max() < 6


def test_sheets_keep_within_their_bytes(monkeypatch):
    """Noise, the hardest to compress, takes a lower quality rather than more room."""
    noise = ImageSet.of(np.random.default_rng(0).integers(0, 255, (200, 96, 96, 3), dtype=np.uint8))
    free = sum(map(len, make_thumbnails(noise, np.arange(200)).sheets))
    monkeypatch.setattr(thumbnails, "MAX_BYTES", free // 2)
    assert sum(map(len, make_thumbnails(noise, np.arange(200)).sheets)) <= free // 2


@pytest.mark.parametrize("limit", [10_000, 300])
def test_the_selected_images_cover_all_categories_and_confidences(limit):
    random = np.random.default_rng(0)
    clusters = np.repeat([0, 1, 2], [5, 600, 395])
    assignments = Assignments(
        [str(i) for i in range(1000)], clusters, random.random(1000), ["a", "b", "new-1"], [True, True, False],
        np.zeros(1000, dtype=bool), np.full(1000, -1), np.zeros(1000),
    )  # fmt: skip
    chosen = select_images(assignments, limit)
    assert len(set(chosen)) == len(chosen) <= limit
    assert np.array_equal(clusters[chosen], np.sort(clusters[chosen]))
    counts = np.bincount(clusters[chosen])
    assert counts[0] == 5  # small ones stay whole
    for c in range(3):
        own = assignments.confidence[chosen[clusters[chosen] == c]]
        assert np.array_equal(own, np.sort(own)[::-1])
        assert own[0] == assignments.confidence[clusters == c].max()
        assert own[-1] == assignments.confidence[clusters == c].min()
    if limit == 10_000:
        assert len(chosen) == 1000
    else:
        assert counts[1] / counts[2] == pytest.approx(600 / 395, rel=0.05)
        assert len(chosen) > 290
