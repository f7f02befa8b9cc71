"""Arrays that a report keeps in the run directory."""

from pathlib import Path

import numpy as np

from promptcal.runtime import files


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """A compressed .npz file, written completely or not at all."""

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:  # NumPy would add a suffix to the name
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    files.write_with(path, save)
