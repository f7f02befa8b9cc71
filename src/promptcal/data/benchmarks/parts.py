"""What the readers of the official layouts share: a part of a dataset, and files by name or by class folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from promptcal.data.images import ImageSet, OpenFile
from promptcal.errors import DataError


class Part(NamedTuple):
    """Training or test images in the dataset's own order, their class numbers 0..C-1, and the C class names."""

    images: ImageSet
    classes: np.ndarray
    class_names: list[str]


Reader = Callable[[Path, bool], Part]  # of the dataset's folder or file, and whether the test images are wanted


def listed_files(folder: Path, names: Sequence[str]) -> ImageSet:
    """Images a dataset's own list names, opened when asked for; one that is missing is an error."""
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise incomplete(folder, f"its lists name {name}, which lies outside of it")
        if not (folder / name).is_file():
            raise incomplete(folder, f"its lists name {name}, which is missing")
    return opened_lazily(folder, names)


def opened_lazily(folder: Path, names: Sequence[str]) -> ImageSet:
    names = list(names)
    return ImageSet(names, OpenFile([folder / name for name in names]), folder)


def class_folders(
    folder: Path, below: str, folders: Sequence[str], *, allow_empty: bool
) -> tuple[ImageSet, np.ndarray]:
    """Images and class numbers of ``folder/below``, one sub-folder a class, in the order of torchvision's ImageFolder.

    A class's number is the position of its sub-folder in ``folders``.
    """
    number = {name: i for i, name in enumerate(folders)}
    if not allow_empty:
        for name in folders:
            if not (folder / below / name).is_dir():
                raise incomplete(folder, f"the class folder {below}/{name} is missing")
    try:
        found = make_dataset(folder / below, number, IMG_EXTENSIONS, allow_empty=allow_empty)
    except FileNotFoundError as error:
        raise incomplete(folder, f"a class folder in {below} holds no images") from error
    images = opened_lazily(folder, [Path(path).relative_to(folder).as_posix() for path, _ in found])
    return images, np.array([n for _, n in found], dtype=np.int64)


def lines(file: Path) -> list[str]:
    """The lines of one of a dataset's lists, without the empty ones."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise incomplete(file.parent, f"{file.name} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise incomplete(file.parent, f"{file.name} cannot be read ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def incomplete(place: Path, what: str) -> DataError:
    return DataError(f"{place} is not the whole dataset: {what}; unpack the archive again")
