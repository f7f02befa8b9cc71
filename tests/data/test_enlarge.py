"""Small images enlarged on the device against PIL's own bicubic."""

import numpy as np
import pytest
import torch
from PIL import Image

from promptcal.data import ImageSet, View, embedded_set
from promptcal.data.enlarge import enlarging_matrix
from promptcal.data.store import ImageStore, decode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(("size", "new_size"), [(32, 256), (32, 72), (17, 100), (8, 8)])
def test_matrix_gives_pils_enlargement(size, new_size):
    image = np.random.default_rng(0).integers(0, 256, (size, size), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image).resize((new_size, new_size), Image.Resampling.BICUBIC))
    matrix = enlarging_matrix(size, new_size).double().numpy()
    across = np.floor(image @ matrix.T + 0.5).clip(0, 255)
    found = np.floor(matrix @ across + 0.5).clip(0, 255)
    assert np.abs(found - expected).max() <= 1  # PIL computes in fixed point
    assert (found == expected).mean() > 0.998


def test_shrinking_is_refused():
    with pytest.raises(ValueError, match="cannot be enlarged"):
        enlarging_matrix(10, 9)


def test_small_images_are_stored_small_and_seen_large():
    images = embedded_set("train").images[:40]
    small, _, _ = decode(ImageSet.of(images), 256)
    assert small.pixels.numel() == images.size
    enlarged = [
        np.asarray(Image.fromarray(i).resize((256, 256), Image.Resampling.BICUBIC), dtype=np.uint8) for i in images
    ]
    large = ImageStore.of(enlarged)
    index = torch.arange(40)
    seen, expected = (View(s, 224, MEAN, STD, resize=256) for s in (small, large))
    for pair in (
        (seen.centre(index), expected.centre(index)),
        tuple(v.random(index, torch.Generator().manual_seed(3)) for v in (seen, expected)),
    ):
        levels = [(p - seen.normalise.shift) / seen.normalise.scale for p in pair]
        difference = (levels[0] - levels[1]).abs().round()
        assert difference.max() <= 1
        assert (difference == 0).float().mean() > 0.999


@pytest.mark.parametrize(
    ("shapes", "shorter_side"),
    [([(32, 32)] * 3, 36), ([(32, 32), (32, 33)], 256), ([(32, 48)] * 2, 256), ([(300, 300)] * 2, 256)],
)
def test_other_images_are_stored_at_the_size_asked_for(tmp_path, shapes, shorter_side):
    for i, shape in enumerate(shapes):
        Image.fromarray(np.zeros((*shape, 3), np.uint8)).save(tmp_path / f"{i}.png")
    store, _, _ = decode(ImageSet.of(tmp_path), shorter_side)
    assert torch.minimum(store.heights, store.widths).tolist() == [shorter_side] * len(shapes)
