"""Images by name: found in a folder, listed as paths, or given as arrays."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize as resize_image

from promptcal.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
_MAX_ASPECT = 50


class UnreadableImage(Exception):
    """Why one image could not be decoded."""


class ImageSet:
    """An ordered set of images, each with a name and a way to open it."""

    def __init__(
        self, names: Sequence[str], open_image: Callable[[int], Image.Image], root: Path | None = None
    ) -> None:
        self.names = list(names)
        self.root = root
        self._open = open_image

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, images: Any) -> "ImageSet":
        """From a folder, an image file, a list of image files, or an array (N x H x W x 3, uint8)."""
        if isinstance(images, ImageSet):
            return images
        if isinstance(images, str | os.PathLike):
            return cls._of_path(Path(images))
        if isinstance(images, np.ndarray | torch.Tensor):
            return cls._of_array(np.asarray(images))
        images = list(images)
        if not images:
            raise DataError("no images were given; pass a folder, a list of image files, or an array")
        if all(isinstance(i, str | os.PathLike) for i in images):
            return cls._of_files([Path(i) for i in images], [str(i) for i in images])
        raise DataError("images must be a folder, a list of image files, or a uint8 array N x H x W x 3")

    @classmethod
    def _of_path(cls, path: Path) -> "ImageSet":
        if path.is_file():
            return cls._of_files([path], [path.name])
        if not path.is_dir():
            raise DataError(f"the image folder {path} does not exist; check the path")
        files = sorted(
            Path(folder, name)
            for folder, _, names in os.walk(path, followlinks=True)
            for name in names
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        )
        if not files:
            raise DataError(f"the folder {path} holds no images ({', '.join(sorted(SUFFIXES))}); check the path")
        return cls._of_files(files, [f.relative_to(path).as_posix() for f in files], path)

    @classmethod
    def _of_files(cls, files: list[Path], names: list[str], root: Path | None = None) -> "ImageSet":
        missing = next((f for f in files if not f.is_file()), None)
        if missing is not None:
            raise DataError(f"the image {missing} does not exist; check the path")
        return cls(names, lambda i: Image.open(files[i]), root)

    @classmethod
    def _of_array(cls, array: np.ndarray) -> "ImageSet":
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or len(array) == 0:
            raise DataError(
                f"an image array must be uint8 of shape N x H x W x 3, not {array.dtype} of shape {array.shape}"
            )
        names = [f"image-{i:06d}" for i in range(len(array))]
        return cls(names, lambda i: Image.fromarray(array[i]))

    def subset(self, indices: Sequence[int]) -> "ImageSet":
        indices = list(indices)
        return ImageSet([self.names[i] for i in indices], lambda i: self._open(indices[i]), self.root)

    def image(self, index: int) -> Image.Image:
        """The image upright and in RGB."""
        try:
            with self._open(index) as image:
                return _to_rgb(image)
        except UnidentifiedImageError as error:
            raise UnreadableImage("not an image") from error
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise UnreadableImage(str(error) or type(error).__name__) from error

    def resized(self, index: int, shorter_side: int) -> np.ndarray:
        """uint8 H x W x 3 with the shorter side as asked (PIL bicubic, the longer side rounded down)."""
        image = self.image(index)
        if max(image.size) > _MAX_ASPECT * min(image.size):
            raise UnreadableImage(f"{image.width} x {image.height} pixels is longer than {_MAX_ASPECT} times its width")
        return np.asarray(resize_image(image, [shorter_side], InterpolationMode.BICUBIC))


def _to_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16-bit grey: PIL's own conversion would clip, not scale
        image = Image.fromarray((np.asarray(image, dtype=np.float64) / 257.0).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
