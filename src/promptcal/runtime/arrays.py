"""NumPy arrays from files that nobody vouches for: nothing in them is unpickled, and none takes more than it should."""

import zipfile
from pathlib import Path

import numpy as np

MOST_BYTES = 2**31  # unpacked; the largest archive there is to read, CIFAR-100, has a tenth of it


def read_array(path: Path) -> np.ndarray:
    """An .npy file, mapped: one that promises more than it holds is a `ValueError`, as is anything else wrong."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged header makes the reader stumble in every way there is
        raise ValueError(_in_a_line(error)) from error


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """The arrays of these names in an .npz archive; a `ValueError` where they are not there or cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MOST_BYTES:
            raise ValueError(f"it would unpack to {unpacked / 2**30:.0f} GB")
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except OSError:
        raise
    except Exception as error:  # as above
        raise ValueError(_in_a_line(error)) from error


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
