"""`ImageSet`: named images from a folder, a glob pattern, files, PIL images, arrays or a Hugging Face dataset."""

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from promptcal.data import huggingface, image_files
from promptcal.data.decoding import HEIC_REMEDY, UnreadableImage, large_image_lock, reads_heic, to_rgb
from promptcal.data.image_arrays import image_stack, is_array, single_image
from promptcal.data.sources import ArraySource, FileSource, ImageSource, PictureSource, SubsetSource
from promptcal.errors import DataError, PromptCALWarning
from promptcal.runtime.arguments import as_list, check_path

_MAX_ASPECT = 50
_SUFFIXES = ", ".join(sorted(image_files.SUFFIXES))


@dataclass(frozen=True)
class SourceLabels:
    """Labels that come with the images: one value or None per image, and a description of their origin."""

    values: Sequence[Any]
    origin: str


@dataclass(frozen=True, eq=False)
class ImageSet:
    """An ordered set of images with unique positions and a name each.

    ``root`` is the folder that the names are relative to, if there is one. ``ignored`` are files in it that cannot be
    read without another package. ``noun`` is what messages call an element: rows of features can have pictures, too.
    ``n_source`` is the number of images of the source if these are all its labelled images and a sample of the others.
    """

    names: list[str]
    source: ImageSource
    root: Path | None = None
    source_labels: SourceLabels | None = None
    ignored: tuple[str, ...] = ()
    noun: str = "image"
    n_source: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ImageSet({len(self)} images{'' if self.root is None else f' in {self.root}'})"

    @classmethod
    def of(cls, images: Any) -> "ImageSet":
        """Images from a folder, a glob pattern, an image file, a Hugging Face dataset, an array, or a list of image
        files, PIL images or arrays. Arrays are uint8, or float from 0 to 1, in grey, RGB or RGBA.
        """
        if isinstance(images, ImageSet):
            return images
        if isinstance(images, str | os.PathLike):
            return _from_path(check_path("images", images))
        is_list = isinstance(images, np.ndarray) and images.ndim == 1 and images.dtype.kind in "OUT"
        if is_array(images) and not is_list:
            stack = image_stack(images)
            return ImageSet(numbered_names(len(stack)), ArraySource(stack))
        if huggingface.is_dataset(images):
            return _from_dataset(images)
        images = as_list("images", images) if isinstance(images, Iterable) else [images]
        if not images:
            raise DataError("no images were given; pass a folder, a list of image files, or an array")
        if all(isinstance(i, str | os.PathLike) for i in images):
            return _from_files([check_path("an image", i) for i in images], [str(i) for i in images])
        if all(map(is_array, images)):
            images = [Image.fromarray(single_image(i)) for i in images]
        if all(isinstance(i, Image.Image) for i in images):
            return ImageSet(numbered_names(len(images)), PictureSource(images))
        kinds = ", ".join(sorted({type(i).__name__ for i in images}))
        raise DataError(
            f"images must be a folder, an array, or a list of image files, PIL images or arrays, not of {kinds}"
        )

    def subset(self, indices: Sequence[int]) -> "ImageSet":
        indices, labels = list(indices), self.source_labels
        if labels is not None:
            labels = SourceLabels([labels.values[i] for i in indices], labels.origin)
        source = SubsetSource(self.source, indices)
        return ImageSet([self.names[i] for i in indices], source, self.root, labels, noun=self.noun)

    def folder(self) -> str | None:
        """The absolute path of the folder that all names are relative to; None if the names are not such files."""
        start = (self.root or Path()).absolute()
        paths = (self.source.path(i) for i in range(len(self)))
        are_below = (p is not None and p.absolute() == start / n for p, n in zip(paths, self.names, strict=True))
        return str(start) if all(are_below) else None

    def image(self, index: int) -> Image.Image:
        """The image in RGB, rotated upright."""
        return self._decoded(index)

    def thumbnail(self, index: int, side: int) -> Image.Image:
        """The whole image, reduced to at most ``side`` pixels on its longer side, never enlarged."""
        image = self._decoded(index, 2 * side)
        image.thumbnail((side, side), Image.Resampling.BICUBIC)
        return image

    def _decoded(self, index: int, least_side: int | None = None) -> Image.Image:
        """A JPEG may be decoded at a fraction of its size, as long as its sides have at least ``least_side`` pixels."""
        try:
            with self.source.open(index) as image, large_image_lock(image):
                if least_side is not None:
                    image.draft(None, (least_side, least_side))
                return to_rgb(image)
        except UnreadableImage:
            raise
        except UnidentifiedImageError as error:
            is_heic = Path(self.names[index]).suffix.lower() in image_files.HEIC_SUFFIXES and not reads_heic()
            raise UnreadableImage(HEIC_REMEDY if is_heic else "not an image") from error
        except Exception as error:  # PIL's decoders raise any exception on damaged files, e.g. struct.error
            raise UnreadableImage(" ".join(str(error).split())[:200] or type(error).__name__) from error

    def usable_image(self, index: int) -> Image.Image:
        """The image, if its aspect ratio allows training on it."""
        image = self.image(index)
        if max(image.size) > _MAX_ASPECT * min(image.size):
            size = f"{image.width} x {image.height} pixels"
            raise UnreadableImage(f"of {size}, one side over {_MAX_ASPECT} times the other")
        return image

    def resized(self, index: int, shorter_side: int) -> np.ndarray:
        """uint8 H x W x 3, resized to this shorter side (PIL bicubic, the longer side rounded down)."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import resize as resize_image

        return np.asarray(resize_image(self.usable_image(index), [shorter_side], InterpolationMode.BICUBIC))

    def size(self, index: int) -> tuple[int, int] | None:
        """Width and height from the file's header, before any rotation; None if the header cannot be read."""
        try:
            return self.source.size(index)
        except Exception:  # `image` reports the reason
            return None

    def content_hash(self, index: int) -> str:
        """The SHA-256 of the image's bytes, or of the exception's name if they cannot be read."""
        try:
            data = self.source.content(index)
        except Exception as error:
            data = type(error).__name__.encode()
        return hashlib.sha256(data).hexdigest()


def numbered_names(count: int) -> list[str]:
    """Names for images without files: image-000000, image-000001, ..."""
    return [f"image-{i:06d}" for i in range(count)]


def _from_path(path: Path) -> ImageSet:
    if path.is_file():
        return _from_files([path], [path.name])
    if image_files.is_pattern(path):
        return _from_pattern(path)
    if not path.is_dir():
        raise DataError(f"the image folder {path} does not exist; check the path")
    files, ignored = _readable(image_files.find_images(path), path)
    if not files:
        raise DataError(f"the folder {path} contains no images ({_SUFFIXES}); check the path")
    names = _relative_names(files, path)
    labels = image_files.class_folder_labels(path, names)
    origin = f"the class folders beside the unlabelled one in {path}"
    return ImageSet(names, FileSource(files), path, SourceLabels(labels, origin) if labels else None, ignored)


def _from_pattern(pattern: Path) -> ImageSet:
    root, parts = image_files.split_pattern(pattern)
    if not root.is_dir():
        raise DataError(f"the folder {root} of the pattern {pattern} does not exist; check the path")
    files, ignored = _readable(image_files.find_images(root, parts), root)
    if not files:
        raise DataError(f"the pattern {pattern} matches no images ({_SUFFIXES}); ** matches any sub-folders")
    return ImageSet(_relative_names(files, root), FileSource(files), root, ignored=ignored)


def _readable(files: list[Path], root: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The files that can be read here, and the names of the HEIC files if they cannot, with a warning."""
    heic = [] if reads_heic() else [file for file in files if file.suffix.lower() in image_files.HEIC_SUFFIXES]
    if not heic:
        return files, ()
    suffix = heic[0].suffix.lower()
    number = f"1 {suffix} file is" if len(heic) == 1 else f"{len(heic)} {suffix} files are"
    message = f"{number} ignored; {HEIC_REMEDY}"
    if len(heic) == len(files):
        raise DataError(f"{root} contains no other images: {message}")
    warnings.warn(message, PromptCALWarning, stacklevel=4)
    ignored = set(heic)
    return [file for file in files if file not in ignored], tuple(_relative_names(heic, root))


def _from_files(files: list[Path], names: list[str]) -> ImageSet:
    for file in files:
        if file.is_dir():
            raise DataError(f"{file} is a folder; pass it alone, or list the images in it")
        if not file.is_file():
            raise DataError(f"the image {file} does not exist; check the path")
    return ImageSet(_checked_names(names), FileSource(files))


def _from_dataset(dataset: Any) -> ImageSet:
    source, labels = huggingface.row_source(dataset), huggingface.row_labels(dataset)
    origin = f"the column {huggingface.LABEL_COLUMN} of the dataset"
    return ImageSet(numbered_names(len(dataset)), source, None, SourceLabels(labels, origin) if labels else None)


def _relative_names(files: Sequence[Path], root: Path) -> list[str]:
    return _checked_names([file.relative_to(root).as_posix() for file in files])


def _checked_names(names: list[str]) -> list[str]:
    for name in names:
        if name.encode("utf-8", "ignore").decode() != name:
            raise DataError(f"the image name {name!a} is not valid Unicode; rename the file")
    return names
