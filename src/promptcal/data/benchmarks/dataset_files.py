"""Helpers of the readers: training or test images, files by name or by class folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from promptcal.data.embedded import embedded_set
from promptcal.data.images import ImageSet
from promptcal.data.sources import FileSource
from promptcal.errors import DataError


class Split(NamedTuple):
    """Training or test images in the data set's own order, their class numbers 0..C-1, and the C class names."""

    images: ImageSet
    classes: np.ndarray
    class_names: list[str]


def listed_files(folder: Path, names: Sequence[str]) -> ImageSet:
    """Images named in one of the data set's lists. A missing file is an error; files are opened when they are used."""
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise incomplete(folder, f"its lists name {name}, which is outside the folder")
        if not (folder / name).is_file():
            raise incomplete(folder, f"its lists name {name}, which is missing")
    return _image_set(folder, names)


def _image_set(folder: Path, names: Sequence[str]) -> ImageSet:
    return ImageSet(list(names), FileSource([folder / name for name in names]), folder)


def class_folders(
    folder: Path, below: str, folders: Sequence[str], *, allow_empty: bool
) -> tuple[ImageSet, np.ndarray]:
    """Images and class numbers of ``folder/below`` with one sub-folder per class, in torchvision's ImageFolder order.

    The number of a class is the position of its sub-folder in ``folders``.
    """
    number = {name: i for i, name in enumerate(folders)}
    if not allow_empty:
        for name in folders:
            if not (folder / below / name).is_dir():
                raise incomplete(folder, f"the class folder {below}/{name} is missing")
    try:
        found = make_dataset(folder / below, number, IMG_EXTENSIONS, allow_empty=allow_empty)
    except FileNotFoundError as error:
        raise incomplete(folder, f"a class folder in {below} contains no images") from error
    images = _image_set(folder, [Path(path).relative_to(folder).as_posix() for path, _ in found])
    return images, np.array([n for _, n in found], dtype=np.int64)


def lines(file: Path) -> list[str]:
    """The non-empty lines of one of a data set's lists."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise incomplete(file.parent, f"{file.name} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise incomplete(file.parent, f"{file.name} cannot be read ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def incomplete(path: Path, what: str) -> DataError:
    return DataError(f"{path} is not the complete data set: {what}; unpack the archive again")


def read_embedded(path: Path, test: bool) -> Split:
    """The images that come with the package; ``path`` is not used."""
    data = embedded_set("test" if test else "train")
    return Split(ImageSet.of(data.images), data.labels, data.classes)
