"""Images by name: found in a folder, listed as paths, or given as arrays."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
            return cls._of_array(images)
        images = list(images) if isinstance(images, Iterable) else [images]
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
        files = sorted(_image_files(path, frozenset()))
        if not files:
            raise DataError(f"the folder {path} holds no images ({', '.join(sorted(SUFFIXES))}); check the path")
        return cls._opening(files, [f.relative_to(path).as_posix() for f in files], path)

    @classmethod
    def _of_files(cls, files: list[Path], names: list[str]) -> "ImageSet":
        for file in files:
            if file.is_dir():
                raise DataError(f"{file} is a folder; pass it alone, or list the images in it")
            if not file.is_file():
                raise DataError(f"the image {file} does not exist; check the path")
        return cls._opening(files, names)

    @classmethod
    def _opening(cls, files: list[Path], names: list[str], root: Path | None = None) -> "ImageSet":
        for name in names:
            if name.encode("utf-8", "ignore").decode() != name:
                raise DataError(f"the image name {name!a} is not valid Unicode; rename the file")
        return cls(names, OpenFile(files), root)

    @classmethod
    def _of_array(cls, images: np.ndarray | torch.Tensor) -> "ImageSet":
        dtype, shape = str(images.dtype).removeprefix("torch."), tuple(images.shape)
        if dtype != "uint8" or len(shape) != 4 or shape[3] != 3 or 0 in shape:
            raise DataError(f"an image array must be uint8 of shape N x H x W x 3, not {dtype} of shape {shape}")
        array = images if isinstance(images, np.ndarray) else images.numpy(force=True)
        names = [f"image-{i:06d}" for i in range(len(array))]
        return cls(names, OpenArray(array))

    def subset(self, indices: Sequence[int]) -> "ImageSet":
        indices = list(indices)
        return ImageSet([self.names[i] for i in indices], OpenChosen(self._open, indices), self.root)

    def image(self, index: int) -> Image.Image:
        """The image upright and in RGB."""
        try:
            with self._open(index) as image:
                return _to_rgb(image)
        except UnreadableImage:
            raise
        except UnidentifiedImageError as error:
            raise UnreadableImage("not an image") from error
        except Exception as error:  # on damaged files PIL's decoders fail in every way, struct.error and KeyError too
            raise UnreadableImage(str(error) or type(error).__name__) from error

    def size(self, index: int) -> tuple[int, int] | None:
        """Width and height by the file's header, before any rotation; None if it cannot be read."""
        try:
            with self._open(index) as image:
                return image.size
        except Exception:  # as in `image`, which says why
            return None

    def content_hash(self, index: int) -> str:
        """Of the file's bytes, or of an array's pixels."""
        try:
            with self._open(index) as image:
                file = getattr(image, "filename", "")
                data = Path(file).read_bytes() if file else image.tobytes()
        except Exception as error:  # an unreadable image has the content "unreadable", for this reason
            data = repr(error).encode()
        return hashlib.sha256(data).hexdigest()

    def resized(self, index: int, shorter_side: int) -> np.ndarray:
        """uint8 H x W x 3 with the shorter side as asked (PIL bicubic, the longer side rounded down)."""
        image = self.image(index)
        if max(image.size) > _MAX_ASPECT * min(image.size):
            raise UnreadableImage(
                f"of {image.width} x {image.height} pixels, one side over {_MAX_ASPECT} times the other"
            )
        return np.asarray(resize_image(image, [shorter_side], InterpolationMode.BICUBIC))


# Ways to open an image by its position: objects, not functions, so that worker processes can be handed them.


@dataclass(frozen=True)
class OpenFile:
    files: list[Path]

    def __call__(self, index: int) -> Image.Image:
        return Image.open(self.files[index])


@dataclass(frozen=True)
class OpenArray:
    array: np.ndarray

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(self.array[index])


@dataclass(frozen=True)
class OpenChosen:
    open_image: Callable[[int], Image.Image]
    indices: list[int]

    def __call__(self, index: int) -> Image.Image:
        return self.open_image(self.indices[index])


def _image_files(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    """Images in a folder and those below it, links followed but never back into a folder ``above``."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read ({error.strerror}); check its permissions") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _image_files(Path(entry.path), above | {real})
        elif (entry.is_file() or entry.is_symlink()) and Path(entry.name).suffix.lower() in SUFFIXES:
            yield Path(entry.path)


def _to_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise UnreadableImage("floating-point pixels have no fixed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16-bit grey: PIL's own conversion would clip, not scale
        image = Image.fromarray((np.asarray(image, dtype=np.float64) / 257.0).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
