"""Helpers of the readers: files by name or by class folder, and errors about incomplete data sets."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from promptcal.data.images import ImageSet
from promptcal.data.sources import FileSource
from promptcal.errors import DataError


def incomplete(path: Path, what: str) -> DataError:
    return DataError(f"{path} is not the complete data set: {what}; unpack the archive again")


def listed_files(folder: Path, names: Sequence[str]) -> ImageSet:
    """Images named in one of the data set's lists. A missing file is an error; files are opened when they are used."""
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise incomplete(folder, f"its lists name {name}, which is outside the folder")
        if not (folder / name).is_file():
            raise incomplete(folder, f"its lists name {name}, which is missing")
    return ImageSet(list(names), FileSource([folder / name for name in names]), folder)


def class_folders(
    folder: Path, below: str, folders: Sequence[str], *, allow_empty: bool
) -> tuple[ImageSet, np.ndarray]:
    """Images and class numbers of ``folder/below`` with one sub-folder per class, in torchvision's ImageFolder order.

    The number of a class is the position of its sub-folder in ``folders``.
    """
    for name in folders:
        if not allow_empty and not (folder / below / name).is_dir():
            raise incomplete(folder, f"the class folder {below}/{name} is missing")
    numbers = {name: i for i, name in enumerate(folders)}
    try:
        found = make_dataset(folder / below, numbers, IMG_EXTENSIONS, allow_empty=allow_empty)
    except FileNotFoundError as error:
        raise incomplete(folder, f"a class folder in {below} contains no images") from error
    files = [Path(path) for path, _ in found]
    names = [file.relative_to(folder).as_posix() for file in files]
    return ImageSet(names, FileSource(files), folder), np.array([number for _, number in found], dtype=np.int64)


def lines(file: Path) -> list[str]:
    """The non-empty lines of one of a data set's lists."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise incomplete(file.parent, f"{file.name} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise incomplete(file.parent, f"{file.name} cannot be read ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
