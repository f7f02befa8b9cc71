"""Arrays that a report stores in the run directory."""

import io
from pathlib import Path

import numpy as np

from promptcal.runtime import files
from promptcal.runtime.arrays import read_arrays


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """A compressed .npz file, written completely or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    files.write_bytes(path, buffer.getvalue())


def read_if_newer(path: Path, source: Path, *names: str) -> list[np.ndarray] | None:
    """The named arrays of a file; None if it is missing, damaged, or older than the file it was computed from."""
    try:
        return read_arrays(path, *names) if path.stat().st_mtime >= source.stat().st_mtime else None
    except (OSError, ValueError):
        return None
