"""Read NumPy arrays from untrusted files: nothing is unpickled, and the size in memory is limited."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

MAX_BYTES = 2**31  # uncompressed; the largest expected archive, CIFAR-100, has a tenth of it


@contextmanager
def _damage_as_value_error() -> Iterator[None]:
    """A damaged file raises many kinds of errors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def read_array(path: Path) -> np.memmap:
    """A memory-mapped .npy file; `ValueError` if it is truncated or damaged."""
    with _damage_as_value_error():
        return np.load(path, mmap_mode="r", allow_pickle=False)


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """The named arrays of an .npz archive; `ValueError` if one is missing or cannot be read."""
    with _damage_as_value_error():
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise ValueError(f"it would unpack to {size / 2**30:.0f} GB")
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
