"""Sprite sheets: the right image in each tile, small enough, and a balanced selection if there are too many."""

import numpy as np
import pytest

from promptcal.data import ImageStore, embedded_set
from promptcal.data.decoding import UnreadableImage
from promptcal.errors import RunError
from promptcal.report import thumbnails
from promptcal.report.selection import select_images
from promptcal.report.thumbnails import Thumbnails, make_thumbnails
from promptcal.run import Assignments


class Plain:
    """Images of one colour each, so that a tile shows which image it is."""

    def __init__(self, n, side=64, broken=()):
        self.colours = np.random.default_rng(0).integers(20, 235, (n, 3), dtype=np.uint8)
        self.side, self.broken = side, broken

    def image(self, index):
        if index in self.broken:
            raise UnreadableImage("gone")
        return np.broadcast_to(self.colours[index], (self.side, self.side + 30, 3)).copy()


def test_every_tile_shows_its_image_and_survives_the_disk(tmp_path):
    store, order = Plain(230), np.random.default_rng(1).permutation(230)
    make_thumbnails(store, order).write(tmp_path)
    read = Thumbnails.read(tmp_path, 230)
    assert len(read.sheets) == 3
    assert np.array_equal(read.images, order)
    for position, image in enumerate(order):
        tile = np.asarray(read.tile(position), dtype=float)
        assert tile.shape == (read.side, read.side, 3)
        # up to the border: neighbours of other colours do not bleed in
        assert np.abs(tile - store.colours[image]).max() < 14
    for folder, n_images in ((tmp_path / "nowhere", 230), (tmp_path, 229)):
        with pytest.raises(RunError, match=r"index\.json"):
            Thumbnails.read(folder, n_images)


def test_a_tile_is_the_centre_square_of_a_real_image():
    image = np.repeat(np.repeat(embedded_set().images[5], 4, axis=0), 4, axis=1)
    wide = np.concatenate([np.zeros((128, 40, 3), np.uint8), image, np.zeros((128, 40, 3), np.uint8)], axis=1)
    tile = make_thumbnails(ImageStore.of([wide]), np.array([0])).tile(0)
    assert tile.size == (128, 128)  # as large as it is, not larger
    assert np.abs(np.asarray(tile, dtype=float) - image).mean() < 6


def test_an_unreadable_image_is_grey():
    made = make_thumbnails(Plain(5, broken={0, 3}), np.arange(5))
    for position in (0, 3):
        assert np.abs(np.asarray(made.tile(position), dtype=float) - 128).max() < 6


def test_sheets_keep_within_their_bytes(monkeypatch):
    """Noise, the hardest to compress, takes a lower quality rather than more room."""
    random = np.random.default_rng(0)
    noise = ImageStore.of([random.integers(0, 255, (96, 96, 3), dtype=np.uint8) for _ in range(100)])
    free = sum(map(len, make_thumbnails(noise, np.arange(100)).sheets))
    monkeypatch.setattr(thumbnails, "MAX_BYTES", free // 2)
    assert sum(map(len, make_thumbnails(noise, np.arange(100)).sheets)) <= free // 2


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
