"""Images as arrays and PIL images: one defined conversion to 8-bit RGB, and an error for everything else."""

import numpy as np
import pytest
import torch
from PIL import Image

from promptcal.data import ImageSet
from promptcal.errors import DataError

GREY = np.random.default_rng(0).integers(0, 256, (3, 9, 11), dtype=np.uint8)
RGB = np.random.default_rng(1).integers(0, 256, (3, 9, 11, 3), dtype=np.uint8)
GREY_AS_RGB = np.repeat(GREY[..., None], 3, axis=3)


def decoded(images):
    image_set = ImageSet.of(images)
    return np.stack([image_set.image(i) for i in range(len(image_set))])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_scaled_and_rounded(kind):
    assert np.array_equal(decoded((RGB / 255).astype(kind)), RGB)
    assert decoded(np.full((1, 2, 2, 3), 0.5, kind)).max() == 128  # round(127.5), to even
    assert np.array_equal(decoded((GREY / 255).astype(kind)), GREY_AS_RGB)


@pytest.mark.parametrize("images", [GREY, GREY[..., None], torch.from_numpy(GREY), list(GREY), list(GREY[..., None])])
def test_grey_arrays_have_two_or_three_axes_per_image(images):
    assert np.array_equal(decoded(images), GREY_AS_RGB)


def test_tensors_of_half_precision_and_with_gradients_are_read():
    tensor = torch.ones(2, 4, 4, 3, dtype=torch.bfloat16, requires_grad=True)
    assert (decoded(tensor) == 255).all()


def test_transparent_pixels_become_white():
    alpha = np.zeros((3, 9, 11, 1), np.uint8)
    alpha[:, :4] = 255
    expected = np.where(alpha > 0, RGB, 255)
    assert np.array_equal(decoded(np.concatenate([RGB, alpha], axis=3)), expected)
    floats = np.concatenate([RGB, alpha], axis=3) / 255
    assert np.array_equal(decoded(list(floats)), expected)


def test_lists_may_have_images_of_several_sizes():
    images = ImageSet.of([RGB[0], GREY[0, :5], torch.from_numpy(RGB[1, :, :4])])
    assert [images.image(i).size for i in range(3)] == [(11, 9), (11, 5), (4, 9)]
    assert images.names == ["image-000000", "image-000001", "image-000002"]


def test_pil_images_are_read_upright_and_left_unchanged(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show it upright
    Image.fromarray(RGB[0]).save(tmp_path / "a.png", exif=exif)
    given = [Image.open(tmp_path / "a.png"), Image.fromarray(GREY[0]), Image.fromarray(RGB[1]).quantize(8)]
    images = ImageSet.of(given)
    for _ in range(2):  # a second epoch reads them again
        assert np.array_equal(images.image(0), np.rot90(RGB[0], -1))
        assert np.array_equal(images.image(1), GREY_AS_RGB[0])
        assert np.array_equal(images.image(2), given[2].convert("RGB"))
    assert given[0].size == (11, 9)
    assert np.array_equal(ImageSet.of(given[1]).image(0), GREY_AS_RGB[0])
    assert images.content_hash(1) == ImageSet.of([Image.fromarray(GREY_AS_RGB[0])]).content_hash(0)
    assert len({images.content_hash(i) for i in range(3)}) == 3


def test_an_array_or_series_of_paths_is_a_list_of_files(tmp_path):
    files = [str(tmp_path / f"{i}.png") for i in range(2)]
    for file, image in zip(files, RGB, strict=False):
        Image.fromarray(image).save(file)
    assert np.array_equal(decoded(np.array(files)), RGB[:2])
    assert np.array_equal(decoded(np.array(files, dtype=object)), RGB[:2])
    pandas = pytest.importorskip("pandas")
    assert np.array_equal(decoded(pandas.Series(files, index=[5, 3])), RGB[:2])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (RGB.astype(np.float32), "from 0 to 1, and image 0 is from 0 to 255; rescale it"),
        (np.full((2, 8, 8, 3), -0.1), "image 0 is from -0.1 to -0.1"),
        (np.stack([np.zeros((8, 8, 3)), np.full((8, 8, 3), np.nan)]), "image 1 is from nan to nan"),
        ([np.full((8, 8), 1.5)], "is from 1.5 to 1.5"),
        (RGB.astype(np.int64), "uint8 .* or float .*, not int64"),
        (RGB > 0, "not bool"),
        (np.array(3.0), r"N x H x W, or N x H x W x 1, 3 or 4, not \(\)"),
        (np.zeros((2, 8, 8, 2), np.uint8), r"not \(2, 8, 8, 2\)"),
        (np.zeros((0, 8, 8, 3), np.uint8), r"not \(0, 8, 8, 3\)"),
        (np.zeros((2, 0, 8), np.uint8), r"not \(2, 0, 8\)"),
        (np.zeros((2, 3, 8, 8), np.uint8), "channels first"),
        (torch.zeros(2, 1, 8, 8), "channels first"),
        (RGB[0], r"shape \(9, 11, 3\) is one image or a stack of narrow ones; pass a list"),
        ([RGB], r"one image must have the shape H x W, or H x W x 1, 3 or 4, not \(3, 9, 11, 3\)"),
        ([RGB[0], "a.png"], "not of ndarray, str"),
    ],
)
def test_other_arrays_are_refused(images, message):
    with pytest.raises(DataError, match=message):
        ImageSet.of(images)
