"""CUB-200-2011: the official folder, or a tar archive of its training images in class folders."""

import re
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from promptcal.data.benchmarks.dataset_files import Split, incomplete, lines, listed_files
from promptcal.data.image_files import SUFFIXES
from promptcal.data.images import ImageSet
from promptcal.data.sources import ArchiveSource
from promptcal.errors import DataError


def read_cub(folder: Path, test: bool) -> Split:
    """In the order of images.txt; class number = id in image_class_labels.txt - 1."""
    class_of = _by_id(folder / "image_class_labels.txt")
    in_training = _by_id(folder / "train_test_split.txt")
    wanted = "0" if test else "1"
    files, classes = [], []
    for image, file in _by_id(folder / "images.txt").items():
        if not class_of.get(image, "").isdecimal() or image not in in_training:
            raise incomplete(folder, f"image {image} of images.txt has no class or no split")
        if in_training[image] == wanted:
            files.append(f"images/{file}")
            classes.append(int(class_of[image]) - 1)
    names = list(_by_id(folder / "classes.txt").values())
    return Split(listed_files(folder, files), np.array(classes, dtype=np.int64), names)


def _by_id(file: Path) -> dict[str, str]:
    """The values of a list with lines `id value`, in its order."""
    pairs = (line.split(" ", 1) for line in lines(file))
    try:
        return {number: value.strip() for number, value in pairs}
    except ValueError as error:
        raise incomplete(file.parent, f"a line of {file.name} has no value") from error


def read_cub_archive(file: Path, test: bool) -> Split:
    """Members `.../001.Black_footed_Albatross/NAME.jpg` by name, read from the archive without extracting it."""
    try:
        with tarfile.open(file, "r:") as archive:
            members = sorted((m for m in archive if m.isreg()), key=lambda m: m.name)
    except (OSError, tarfile.TarError) as error:
        raise incomplete(file, f"it cannot be read ({error})") from error
    members = [m for m in members if PurePosixPath(m.name).suffix.lower() in SUFFIXES]
    folders = [_class_folder(file, m.name) for m in members]
    spans = [(m.offset_data, m.size) for m in members]
    classes = np.array([int(folder[:3]) - 1 for folder in folders], dtype=np.int64)
    return Split(ImageSet([m.name for m in members], ArchiveSource(file, spans)), classes, sorted(set(folders)))


def _class_folder(file: Path, member: str) -> str:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{file} has the member {member}, which points outside of it; download the archive again")
    if not re.fullmatch(r"\d{3}\..+", path.parent.name):
        raise DataError(
            f"{file} has the member {member}, which is not in a class folder such as 001.Name; pack it again"
        )
    return path.parent.name
