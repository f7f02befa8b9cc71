"""Streamed images give the same views as a store, and unreadable files are found before training."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from promptcal.data import ImageSet, StreamedView, View
from promptcal.data.sources import ArchiveSource
from promptcal.data.store import decode
from promptcal.data.stream import scan_images
from promptcal.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for i in range(7):
        Image.fromarray(generator.integers(0, 256, (30 + 4 * i, 41, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_views_equal_those_of_a_store(folder, workers):
    images = ImageSet.of(folder)
    source, kept, faults = scan_images(images, 32)
    assert (kept, faults) == (list(range(7)), [])
    streamed = StreamedView(source, 28, MEAN, STD, workers=workers)
    stored = View(decode(images, 32)[0], 28, MEAN, STD)
    order, seeds = torch.tensor([[0, 3, 3], [6, 1, 2], [5, 5, 0]]), [4, 5, 6]
    for found, expected in zip(streamed.batches(order, seeds), stored.batches(order, seeds), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)
    found = torch.cat(list(streamed.centres(torch.arange(7), 3)))
    assert torch.allclose(found, stored.centre(torch.arange(7)), atol=1e-6)


def test_unreadable_files_are_found_before_training(folder):
    (folder / "4.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="4.png"):
        scan_images(ImageSet.of(folder), 32)
    source, kept, faults = scan_images(ImageSet.of(folder), 32, skip_unreadable=True)
    assert len(source) == 6
    assert kept == [0, 1, 2, 3, 5, 6]
    assert [name for name, _ in faults] == ["4.png"]
    assert np.array_equal(source.image(4), ImageSet.of(folder).resized(5, 32))


def test_every_source_can_be_handed_to_a_worker_process(folder):
    encoded = np.frombuffer((folder / "0.png").read_bytes(), dtype=np.uint8)
    array = np.zeros((2, 9, 8, 3), np.uint8)
    sources = [
        ImageSet.of(folder),
        ImageSet.of(folder).subset([3, 1]),
        ImageSet.of(array),
        ImageSet(["a"], ArchiveSource(encoded, [(0, len(encoded))])),
        ImageSet(["a"], ArchiveSource(folder / "0.png", [(0, len(encoded))])),
    ]
    for images in sources:
        copy = pickle.loads(pickle.dumps(images))
        assert np.array_equal(copy.image(0), images.image(0))
        assert copy.content_hash(0) == images.content_hash(0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", ["gone", "cut off", "another"])
def test_an_image_that_is_not_what_it_was_is_named(folder, what, workers):
    source, _, _ = scan_images(ImageSet.of(folder), 32)
    file = folder / "3.png"
    if what == "gone":
        file.unlink()
    elif what == "cut off":
        file.write_bytes(file.read_bytes()[:300])
    else:
        Image.open(file).rotate(180).save(file)
    streamed = StreamedView(source, 28, MEAN, STD, workers=workers)
    said = "3.png has changed since the run began" if what == "another" else "3.png was readable when the run began"
    assert next(streamed.batches(torch.tensor([[0, 1]]), [4])).shape == (4, 3, 28, 28)
    with pytest.raises(DataError, match=f"^{said}.*--resume$"):
        next(streamed.batches(torch.tensor([[2, 3]]), [4]))
