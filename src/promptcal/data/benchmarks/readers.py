"""Readers of the benchmarks that are stored as image files: lists of files, class folders, or a tar archive."""

import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from torchvision import datasets

from promptcal.data.benchmarks.class_lists import published_split
from promptcal.data.benchmarks.dataset_files import class_folders, incomplete, lines, listed_files
from promptcal.data.benchmarks.spec import Split
from promptcal.data.embedded import embedded_set
from promptcal.data.image_files import SUFFIXES
from promptcal.data.images import ImageSet
from promptcal.data.sources import ArchiveSource
from promptcal.errors import DataError
from promptcal.runtime.files import check_no_link


def read_embedded(path: Path, test: bool) -> Split:
    """The images that come with the package; ``path`` is not used."""
    data = embedded_set("test" if test else "train")
    return Split(ImageSet.of(data.images), data.labels, data.classes)


def read_imagenet100(folder: Path, test: bool) -> Split:
    """100 classes of train/ or val/, one sub-folder per WordNet id; class number = position among the 100."""
    published = published_split("imagenet100_gcd")
    images, classes = class_folders(folder, "val" if test else "train", published["wnids"], allow_empty=False)
    return Split(images, classes, list(published["names"]))


def read_herbarium(folder: Path, test: bool) -> Split:
    """small-train/ or small-validation/; class number = position among small-train's folders sorted as text."""
    for part in ("small-train", "small-validation") if test else ("small-train",):
        if not (folder / part).is_dir():
            raise incomplete(folder, f"{part} is missing")
    names = sorted(entry.name for entry in (folder / "small-train").iterdir() if entry.is_dir())
    images, classes = class_folders(folder, "small-validation" if test else "small-train", names, allow_empty=test)
    return Split(images, classes, names)


def read_aircraft(folder: Path, test: bool) -> Split:
    """FGVC-Aircraft, trainval or test in the order of its list; class number = position among the sorted variants."""
    names = sorted(lines(folder / "data" / "variants.txt"))
    numbers = {name: i for i, name in enumerate(names)}
    files, classes = [], []
    for line in lines(folder / "data" / f"images_variant_{'test' if test else 'trainval'}.txt"):
        image, _, variant = line.partition(" ")
        if variant not in numbers:
            raise incomplete(folder, f"image {image} has the variant {variant!r}, which is not in variants.txt")
        files.append(f"data/images/{image}.jpg")
        classes.append(numbers[variant])
    return Split(listed_files(folder, files), np.array(classes, dtype=np.int64), names)


def download_aircraft(root: Path) -> None:
    """If the download fails, remove the archive: it has no checksum, and torchvision would accept a truncated one."""
    archive = root / "fgvc-aircraft-2013b.tar.gz"
    for path in (archive, root / "fgvc-aircraft-2013b"):
        check_no_link(path)
    existed = archive.exists()
    try:
        datasets.FGVCAircraft(root, download=True)
    except BaseException:
        if not existed:
            archive.unlink(missing_ok=True)
        raise


def read_cars(folder: Path, test: bool) -> Split:
    """Stanford Cars in torchvision's layout, in the order of the annotations; class number = annotated class - 1."""
    file = folder / ("cars_test_annos_withlabels.mat" if test else "devkit/cars_train_annos.mat")
    in_devkit = folder / "devkit" / file.name  # torchvision stores the test annotations beside the devkit
    if not file.is_file() and in_devkit.is_file():
        file = in_devkit
    annotations = np.atleast_1d(_matlab_variable(folder, file, "annotations"))
    try:
        files = [f"{'cars_test' if test else 'cars_train'}/{name}" for name in annotations["fname"]]
        classes = np.array([int(number) - 1 for number in annotations["class"]], dtype=np.int64)
    except (ValueError, IndexError, TypeError) as error:
        raise incomplete(folder, f"{file.name} has no file names and classes") from error
    names = np.atleast_1d(_matlab_variable(folder, folder / "devkit" / "cars_meta.mat", "class_names"))
    return Split(listed_files(folder, files), classes, [str(name) for name in names])


def _matlab_variable(folder: Path, file: Path, variable: str) -> Any:
    if not file.is_file():
        raise incomplete(folder, f"{file.relative_to(folder)} is missing")
    try:
        return loadmat(file, squeeze_me=True)[variable]
    except (OSError, ValueError, LookupError, TypeError, NotImplementedError, MatReadError) as error:
        raise incomplete(folder, f"{file.relative_to(folder)} cannot be read ({error})") from error


def read_cub(folder: Path, test: bool) -> Split:
    """CUB-200-2011 in the order of images.txt; class number = id in image_class_labels.txt - 1."""
    class_of = _values_by_id(folder / "image_class_labels.txt")
    in_training = _values_by_id(folder / "train_test_split.txt")
    files, classes = [], []
    for image, file in _values_by_id(folder / "images.txt").items():
        if not class_of.get(image, "").isdecimal() or image not in in_training:
            raise incomplete(folder, f"image {image} of images.txt has no class or no split")
        if in_training[image] == ("0" if test else "1"):
            files.append(f"images/{file}")
            classes.append(int(class_of[image]) - 1)
    names = list(_values_by_id(folder / "classes.txt").values())
    return Split(listed_files(folder, files), np.array(classes, dtype=np.int64), names)


def _values_by_id(file: Path) -> dict[str, str]:
    """The values of a list with lines `id value`, in its order."""
    try:
        return {number: value.strip() for number, value in (line.split(" ", 1) for line in lines(file))}
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
    classes = np.array([int(folder[:3]) - 1 for folder in folders], dtype=np.int64)
    source = ArchiveSource(file, [(m.offset_data, m.size) for m in members])
    return Split(ImageSet([m.name for m in members], source), classes, sorted(set(folders)))


def _class_folder(file: Path, member: str) -> str:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{file} has the member {member}, which points outside of it; download the archive again")
    if not re.fullmatch(r"\d{3}\..+", path.parent.name):
        raise DataError(
            f"{file} has the member {member}, which is not in a class folder such as 001.Name; pack it again"
        )
    return path.parent.name
