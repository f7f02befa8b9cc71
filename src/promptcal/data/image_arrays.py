"""Images given as arrays: uint8 from 0 to 255 or floats from 0 to 1, in grey, RGB or RGBA."""

import sys
from typing import Any

import numpy as np

from promptcal.errors import DataError
from promptcal.runtime.arguments import tensor_as_numpy

_CHANNELS = (1, 3, 4)


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of PyTorch; does not import it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_tensor(value)


def image_stack(images: Any) -> np.ndarray:
    """uint8 N x H x W (grey), N x H x W x 3 or N x H x W x 4 (the last channel is alpha).

    ``images`` also may have floats from 0 to 1, which become round(255 x), or one channel.
    """
    array = _as_numpy(images)
    shape = array.shape
    if array.ndim == 3 and shape[2] in _CHANNELS:
        raise DataError(f"an array of shape {shape} is one image or a stack of narrow ones; pass a list of images")
    if array.ndim == 4 and shape[3] not in _CHANNELS and shape[1] in _CHANNELS:
        raise DataError(f"an image array of shape {shape} has its channels first; move them: N x H x W x 3")
    if array.ndim not in (3, 4) or 0 in shape or (array.ndim == 4 and shape[3] not in _CHANNELS):
        raise DataError(f"an image array must have the shape N x H x W, or N x H x W x 1, 3 or 4, not {shape}")
    return _as_bytes(array[..., 0] if array.ndim == 4 and shape[3] == 1 else array)


def single_image(image: Any) -> np.ndarray:
    """uint8 H x W, H x W x 3 or H x W x 4, from an array as in `image_stack` without its first axis."""
    array = _as_numpy(image)
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        raise DataError(f"the array of one image must have the shape H x W, or H x W x 1, 3 or 4, not {array.shape}")
    return _as_bytes((array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)[None])[0]


def _as_numpy(images: Any) -> np.ndarray:
    if is_tensor(images):
        images = tensor_as_numpy("images", images)
    array = np.asarray(images)
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(f"an image array must be uint8 (0 to 255) or float (0 to 1), not {array.dtype}; convert it")
    return array


def _as_bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    result = np.empty(array.shape, np.uint8)
    for i, image in enumerate(array):  # one at a time, which needs less memory
        low, high = image.min(), image.max()
        if not (low >= 0 and high <= 1):  # also if a value is not a number
            raise DataError(f"a float image must be from 0 to 1, and image {i} is from {low:g} to {high:g}; rescale it")
        result[i] = np.rint(image * 255)
    return result
