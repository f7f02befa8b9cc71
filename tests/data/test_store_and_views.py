"""Stored images, crops and views against torchvision's own transforms."""

import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chisquare
from torchvision import transforms
from torchvision.transforms import functional

from promptcal.data import ImageSet, ImageStore, View
from promptcal.data.decoding import UnreadableImage
from promptcal.data.store import decode, decoded
from promptcal.runtime.interrupts import StopRequest

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = [(40, 60), (60, 40), (50, 50), (41, 97), (9, 13), (5, 5), (32, 33)]  # height x width; 32 is the store's side


def pictures(sizes):
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


class Decoded(NamedTuple):
    """An image source over arrays of different sizes."""

    arrays: list

    def open(self, index):
        return Image.fromarray(self.arrays[index])


def image_set(arrays):
    return ImageSet([str(i) for i in range(len(arrays))], Decoded(arrays))


def test_stored_images_equal_torchvisions_bicubic_resize():
    arrays = pictures(SIZES)
    store, kept, faults = decode(image_set(arrays), 32)
    assert (len(store), kept, faults) == (len(SIZES), list(range(len(SIZES))), [])
    resize = transforms.Resize(32, transforms.InterpolationMode.BICUBIC)
    for i, array in enumerate(arrays):
        assert np.array_equal(store.image(i), np.asarray(resize(Image.fromarray(array)))), SIZES[i]


def test_crops_and_flips_equal_torchvisions():
    arrays = pictures(SIZES[:4])
    store = ImageStore.of(arrays).to("cpu")
    generator = np.random.default_rng(1)
    index = torch.tensor([2, 0, 3, 3, 1, 0])
    top = torch.tensor([int(generator.integers(0, SIZES[i][0] - 24 + 1)) for i in index])
    left = torch.tensor([int(generator.integers(0, SIZES[i][1] - 24 + 1)) for i in index])
    flip = torch.tensor([True, False, True, False, True, False])
    found = store.crop(index, top, left, 24, flip)
    assert torch.equal(found, torch.stack(list(store.each_crop(index, top, left, 24, flip))))
    assert (found.dtype, found.shape) == (torch.uint8, (6, 3, 24, 24))
    for row, i in enumerate(index.tolist()):
        expected = functional.crop(Image.fromarray(arrays[i]), int(top[row]), int(left[row]), 24, 24)
        expected = functional.hflip(expected) if flip[row] else expected
        assert np.array_equal(found[row].permute(1, 2, 0), np.asarray(expected))


def test_centre_views_equal_torchvisions():
    sizes = [(24 + rows, 24 + columns) for rows, columns in [(0, 0), (0, 1), (1, 2), (3, 5), (6, 7), (8, 0), (9, 13)]]
    arrays = pictures(sizes)
    reference = transforms.Compose([transforms.CenterCrop(24), transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    expected = torch.stack([reference(Image.fromarray(a)) for a in arrays])
    order = torch.tensor([3, 0, 6, 1, 5, 4, 2])
    found = View(ImageStore.of(arrays), 24, MEAN, STD).centre(order)
    torch.testing.assert_close(found, expected[order], atol=1e-6, rtol=0)


def coordinates(height, width):
    """An image whose pixels say where they lie."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, 7)], axis=2).astype(np.uint8)


def drawn(view, n, seed):
    """Top, left and flip of ``n`` random views of the only image, read off their corner pixels."""
    views = view.random(torch.zeros(n, dtype=torch.long), torch.Generator().manual_seed(seed))
    views = (views * 255).round().long()
    top, left, right = views[:, 0, 0, 0], views[:, 1, 0, 0], views[:, 1, 0, -1]
    return views, top, torch.minimum(left, right), left > right


def test_random_crops_are_uniform_over_all_places_and_half_are_mirrored():
    n, size = 20_000, 8
    view = View(ImageStore.of([coordinates(12, 14)]), size, (0, 0, 0), (1, 1, 1))
    views, top, left, flip = drawn(view, n, 0)
    counts = torch.bincount((top * 7 + left) * 2 + flip, minlength=5 * 7 * 2)
    assert len(counts) == 70  # 5 tops, 7 lefts, both ends included, nothing beyond
    assert chisquare(counts.numpy()).pvalue > 1e-3
    assert abs(flip.float().mean() - 0.5) < 4 * 0.5 / n**0.5
    image = Image.fromarray(coordinates(12, 14))
    for i in range(200):
        crop = functional.crop(image, int(top[i]), int(left[i]), size, size)
        expected = functional.hflip(crop) if flip[i] else crop
        assert np.array_equal(views[i].permute(1, 2, 0), np.asarray(expected))
    _, top, left, flip = drawn(View(ImageStore.of([coordinates(8, 8)]), 8, (0, 0, 0), (1, 1, 1)), 100, 0)
    assert (top + left).max() == 0  # without spare pixels, images are only flipped
    assert 0 < flip.sum() < 100


def test_the_generator_alone_decides_the_random_views():
    view = View(ImageStore.of(pictures(SIZES[:4])), 24, MEAN, STD)
    index = torch.tensor([0, 1, 2, 3] * 4)
    first, second, other = (view.random(index, torch.Generator().manual_seed(s)) for s in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_random_views_are_normalised_as_torchvisions():
    arrays = pictures([(24, 24)])
    view = View(ImageStore.of(arrays), 24, MEAN, STD)
    upright = functional.normalize(functional.to_tensor(Image.fromarray(arrays[0])), MEAN, STD)
    for found in view.random(torch.zeros(8, dtype=torch.long), torch.Generator().manual_seed(0)):
        torch.testing.assert_close(
            found, min(upright, upright.flip(2), key=lambda e: float((found - e).abs().sum())), atol=1e-6, rtol=0
        )


def test_reused_memory_is_overwritten_and_only_then():
    arrays = pictures(SIZES[:4])
    index = torch.arange(4)
    for reuse in (True, False):
        view = View(ImageStore.of(arrays), 24, MEAN, STD, reuse=reuse)
        first = view.random(index, torch.Generator().manual_seed(0))
        second = view.random(index, torch.Generator().manual_seed(1))
        assert (first.data_ptr() == second.data_ptr()) == reuse


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_threads_and_processes_decode_alike(tmp_path):
    for i, array in enumerate(pictures(SIZES)):
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"no image")
    images = ImageSet.of(tmp_path)
    for side in (32, None):
        threads, processes = (list(decoded(images, side, processes=p)) for p in (False, True))
        for i, (a, b) in enumerate(zip(threads, processes, strict=True)):
            if i == 3:
                assert isinstance(a, UnreadableImage)
                assert str(a) == str(b)
            else:
                assert np.array_equal(a, b)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_processes_end_where_the_caller_handles_signals(tmp_path):
    for i, array in enumerate(pictures([(40, 40)] * 40)):
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    images = ImageSet.of(tmp_path)
    with StopRequest().listening() as stop:
        for _ in range(3):
            assert sum(1 for _ in decoded(images, 32, processes=True)) == 40
            next(decoded(images, 32, processes=True))  # and left early
        assert not stop


def test_a_store_too_small_for_the_crop_is_refused():
    with pytest.raises(ValueError, match="crops of 24 pixels cannot be cut from a stored image of 9"):
        View(ImageStore.of(pictures([(40, 40), (9, 30)])), 24, MEAN, STD)
