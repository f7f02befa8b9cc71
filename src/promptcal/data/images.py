"""Images by name: found in a folder or by a pattern, listed as paths, or given as arrays or a dataset."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize as resize_image

from promptcal.data import huggingface
from promptcal.data import image_files as finding
from promptcal.data.decoding import open_image, turn_for
from promptcal.errors import DataError

_MAX_ASPECT = 50


class UnreadableImage(Exception):
    """Why one image could not be decoded."""


@dataclass(frozen=True)
class OwnLabels:
    """Labels that come with the images, one (or None) each, and where they come from in words."""

    values: list[Any]
    origin: str


class ImageSet:
    """An ordered set of images, each with a name and a way to open it."""

    def __init__(
        self,
        names: Sequence[str],
        open_image: Callable[[int], Image.Image],
        root: Path | None = None,
        own_labels: OwnLabels | None = None,
    ) -> None:
        self.names = list(names)
        self.root = root
        self.own_labels = own_labels
        self._open = open_image

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, images: Any) -> "ImageSet":
        """From a folder, a glob pattern, an image file, a list of image files, an array (N x H x W x 3, uint8),
        or a Hugging Face dataset.
        """
        if isinstance(images, ImageSet):
            return images
        if isinstance(images, str | os.PathLike):
            return cls._of_path(Path(images))
        if isinstance(images, np.ndarray | torch.Tensor):
            return cls._of_array(images)
        if huggingface.is_dataset(images):
            return cls._of_dataset(images)
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
        if finding.is_pattern(path):
            return cls._of_pattern(path)
        if not path.is_dir():
            raise DataError(f"the image folder {path} does not exist; check the path")
        files = finding.image_files(path)
        if not files:
            raise DataError(f"the folder {path} holds no images ({_suffixes()}); check the path")
        images = cls._opening(files, [f.relative_to(path).as_posix() for f in files], path)
        classes = finding.folder_classes(path, images.names)
        if classes is not None:
            images.own_labels = OwnLabels(classes, f"the class folders beside the unlabelled one in {path}")
        return images

    @classmethod
    def _of_pattern(cls, pattern: Path) -> "ImageSet":
        root, parts = finding.fixed_part(pattern)
        if not root.is_dir():
            raise DataError(f"the folder {root} of the pattern {pattern} does not exist; check the path")
        files = finding.matching_files(root, parts)
        if not files:
            raise DataError(f"the pattern {pattern} fits no images ({_suffixes()}); ** stands for any sub-folders")
        return cls._opening(files, [f.relative_to(root).as_posix() for f in files], root)

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
        return cls(_numbered(len(array)), OpenArray(array))

    @classmethod
    def _of_dataset(cls, dataset: Any) -> "ImageSet":
        open_row, labels = huggingface.opener(dataset), huggingface.labels(dataset)
        origin = f"the column {huggingface.LABEL_COLUMN} of the dataset"
        return cls(_numbered(len(dataset)), open_row, None, None if labels is None else OwnLabels(labels, origin))

    def subset(self, indices: Sequence[int]) -> "ImageSet":
        indices = list(indices)
        own = self.own_labels
        return ImageSet(
            [self.names[i] for i in indices],
            OpenChosen(self._open, indices),
            self.root,
            None if own is None else OwnLabels([own.values[i] for i in indices], own.origin),
        )

    def folder(self) -> str | None:
        """Where the images' names lead to their files from, as an absolute path; None where they are no such files."""
        tell = getattr(self._open, "path", None)
        start = (self.root or Path()).absolute()
        if tell is None or any(tell(i) is None or tell(i).absolute() != start / n for i, n in enumerate(self.names)):
            return None
        return str(start)

    def image(self, index: int) -> Image.Image:
        """The image upright and in RGB."""
        try:
            with self._open(index) as image, turn_for(image):
                return _to_rgb(image)
        except UnreadableImage:
            raise
        except UnidentifiedImageError as error:
            raise UnreadableImage("not an image") from error
        except Exception as error:  # on damaged files PIL's decoders fail in every way, struct.error and KeyError too
            raise UnreadableImage(" ".join(str(error).split())[:200] or type(error).__name__) from error

    def size(self, index: int) -> tuple[int, int] | None:
        """Width and height by the file's header, before any rotation; None if it cannot be read."""
        try:
            with self._open(index) as image:
                return image.size
        except Exception:  # as in `image`, which says why
            return None

    def content_hash(self, index: int) -> str:
        """Of the bytes the image is made of; where its opener does not tell them, of its pixels."""
        tell = getattr(self._open, "content", None)
        try:
            data = tell(index) if tell is not None else self._pixel_bytes(index)
        except Exception as error:  # unreadable, which is all there is to know of it
            data = type(error).__name__.encode()
        return hashlib.sha256(data).hexdigest()

    def _pixel_bytes(self, index: int) -> bytes:
        image = self.image(index)
        return f"{image.size}".encode() + image.tobytes()

    def usable_image(self, index: int) -> Image.Image:
        """The image, of a shape that can be trained on."""
        image = self.image(index)
        if max(image.size) > _MAX_ASPECT * min(image.size):
            raise UnreadableImage(
                f"of {image.width} x {image.height} pixels, one side over {_MAX_ASPECT} times the other"
            )
        return image

    def resized(self, index: int, shorter_side: int) -> np.ndarray:
        """uint8 H x W x 3 with the shorter side as asked (PIL bicubic, the longer side rounded down)."""
        return np.asarray(resize_image(self.usable_image(index), [shorter_side], InterpolationMode.BICUBIC))


# Ways to open an image by its position, and to tell the bytes it is made of: objects, not functions, so that worker
# processes can be handed them.


@dataclass(frozen=True)
class OpenFile:
    files: list[Path]

    def __call__(self, index: int) -> Image.Image:
        return open_image(self.files[index])

    def content(self, index: int) -> bytes:
        return self.files[index].read_bytes()

    def path(self, index: int) -> Path:
        return self.files[index]


@dataclass(frozen=True)
class OpenSpan:
    """Encoded images that lie one after another in a file or an array of bytes, by (start, size)."""

    source: "Path | np.ndarray"
    spans: list[tuple[int, int]]

    def __call__(self, index: int) -> Image.Image:
        return open_image(BytesIO(self.content(index)))

    def content(self, index: int) -> bytes:
        start, size = self.spans[index]
        if isinstance(self.source, np.ndarray):
            return self.source[start : start + size].tobytes()
        with self.source.open("rb") as file:
            file.seek(start)
            return file.read(size)


@dataclass(frozen=True)
class OpenArray:
    array: np.ndarray

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(self.array[index])

    def content(self, index: int) -> bytes:
        return f"{self.array.shape[1:]}".encode() + self.array[index].tobytes()


@dataclass(frozen=True)
class OpenChosen:
    open_image: Any
    indices: list[int]

    def __call__(self, index: int) -> Image.Image:
        return self.open_image(self.indices[index])

    def content(self, index: int) -> bytes:
        return self.open_image.content(self.indices[index])

    def path(self, index: int) -> Path | None:
        tell = getattr(self.open_image, "path", None)
        return None if tell is None else tell(self.indices[index])


def _numbered(count: int) -> list[str]:
    return [f"image-{i:06d}" for i in range(count)]


def _suffixes() -> str:
    return ", ".join(sorted(finding.SUFFIXES))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):  # older Pillow reads 16-bit PNG as I
        kind = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise UnreadableImage(f"{kind} pixels have no fixed range; save it with 8 or 16 bits")
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # 16-bit grey: PIL's own conversion would clip, not scale
        image = Image.fromarray(_eight_bits(np.array(image)))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    """16-bit values divided by 257 and rounded, which never meets a half; in place, to spare memory."""
    pixels = pixels.astype(np.int32)
    pixels.clip(0, 65535, out=pixels)
    pixels += 128
    pixels //= 257
    return pixels.astype(np.uint8)
