"""CIFAR-10 and CIFAR-100: torchvision's pickled batches, or all CIFAR-100 images as JPEG in one cifar100.npz."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from torchvision import datasets

from promptcal.data.benchmarks.reading import Part, incomplete
from promptcal.data.images import ImageSet, OpenSpan
from promptcal.errors import DataError


def read_cifar10(folder: Path, test: bool) -> Part:
    return _read_batches(datasets.CIFAR10, folder, test)


def read_cifar100(folder: Path, test: bool) -> Part:
    return _read_batches(datasets.CIFAR100, folder, test)


def download_cifar10(root: Path) -> None:
    datasets.CIFAR10(root, download=True)


def download_cifar100(root: Path) -> None:
    datasets.CIFAR100(root, download=True)


def _read_batches(dataset: type, folder: Path, test: bool) -> Part:
    """Through torchvision, which checks the files' MD5 before it unpickles them."""
    try:
        read = dataset(folder.parent, train=not test)
    except RuntimeError as error:
        raise DataError(
            f"{folder} is incomplete or damaged (a checksum differs); delete it and fetch it again with --download"
        ) from error
    return Part(ImageSet.of(read.data), np.array(read.targets, dtype=np.int64), list(read.classes))


def read_cifar100_archive(file: Path, test: bool) -> Part:
    """From `jpeg` (bytes end to end), `offsets` (n + 1), `label`, `split` (0 train, 1 test) and `classes`."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            jpeg, offsets, label, split, names = (
                archive[key] for key in ("jpeg", "offsets", "label", "split", "classes")
            )
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise incomplete(file, f"it cannot be read ({error})") from error
    chosen = np.flatnonzero(split == int(test))
    spans = [(int(offsets[i]), int(offsets[i + 1] - offsets[i])) for i in chosen]
    images = ImageSet([f"image-{i:06d}" for i in range(len(chosen))], OpenSpan(jpeg, spans))
    return Part(images, label[chosen].astype(np.int64), [str(name) for name in names])
