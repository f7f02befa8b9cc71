"""CIFAR-10 and CIFAR-100: torchvision's pickled batches, or all CIFAR-100 images as JPEG in one cifar100.npz."""

import codecs
import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive

from promptcal.data.benchmarks.dataset_files import incomplete
from promptcal.data.benchmarks.spec import Split
from promptcal.data.images import ImageSet, numbered_names
from promptcal.data.sources import ArchiveSource
from promptcal.errors import DataError
from promptcal.runtime.arrays import read_arrays
from promptcal.runtime.files import check_no_link

_ALLOWED = {
    "_reconstruct": np.empty(0).__reduce__()[0],  # its module depends on NumPy's version
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "encode": codecs.encode,
}
_MODULES = frozenset({"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs"})


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can only create NumPy arrays and built-in containers."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in _MODULES or name not in _ALLOWED:
            raise pickle.UnpicklingError(f"it would call {module}.{name}")
        return _ALLOWED[name]


@dataclass(frozen=True)
class PickledBatches:
    """CIFAR in its original form. ``dataset`` is torchvision's class with the names and checksums of the files."""

    dataset: Any

    def download(self, root: Path) -> None:
        """Download and check the archive as torchvision does, but do not unpickle it."""
        dataset = self.dataset
        for name in (dataset.filename, dataset.base_folder):
            check_no_link(root / name)
        download_and_extract_archive(dataset.url, str(root), filename=dataset.filename, md5=dataset.tgz_md5)

    def read(self, folder: Path, test: bool) -> Split:
        """The batches in torchvision's order."""
        dataset = self.dataset
        batches = [_unpickled(folder, *entry) for entry in (dataset.test_list if test else dataset.train_list)]
        names = _unpickled(folder, dataset.meta["filename"], dataset.meta["md5"])[dataset.meta["key"]]
        pixels = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        key = "labels" if "labels" in batches[0] else "fine_labels"
        classes = np.concatenate([np.asarray(batch[key], dtype=np.int64) for batch in batches])
        return Split(ImageSet.of(np.ascontiguousarray(pixels)), classes, list(names))


CIFAR10, CIFAR100 = PickledBatches(datasets.CIFAR10), PickledBatches(datasets.CIFAR100)


def _unpickled(folder: Path, name: str, md5: str) -> dict[str, Any]:
    """The content of an official file. It must have the published checksum; even then it cannot run code."""
    try:
        content = (folder / name).read_bytes()
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
            raise ValueError("checksum mismatch")
        return dict(_ArraysOnly(io.BytesIO(content), encoding="latin1").load())
    except Exception as error:  # a damaged pickle can raise any exception
        raise DataError(
            f"{folder} is incomplete or damaged ({name}: {error}); delete it and download it again with --download"
        ) from error


def read_cifar100_archive(file: Path, test: bool) -> Split:
    """From `jpeg` (concatenated bytes), `offsets` (n + 1), `label`, `split` (0 train, 1 test) and `classes`."""
    try:
        jpeg, offsets, label, split, names = read_arrays(file, "jpeg", "offsets", "label", "split", "classes")
        chosen = np.flatnonzero(split == int(test))
        spans = [(int(offsets[i]), int(offsets[i + 1] - offsets[i])) for i in chosen]
        classes = label[chosen].astype(np.int64)
        if any(start < 0 or size < 0 or start + size > len(jpeg) for start, size in spans):
            raise ValueError("its offsets point outside it")
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise incomplete(file, f"it cannot be read ({error})") from error
    images = ImageSet(numbered_names(len(chosen)), ArchiveSource(jpeg, spans))
    return Split(images, classes, [str(name) for name in names])
