"""What the app computes from stored embeddings, in a separate process (`side_process`): splits and quick refits.

Each function takes a callback for its progress as its last argument.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from promptcal.app import quick_refits
from promptcal.app.label_state import LabelState, Predictions
from promptcal.discovery.calibration import Calibration
from promptcal.run.stored_run import StoredRun

OnProgress = Callable[[int, int], None]


class EmbeddingFile:
    """The embeddings of a run. Only rows that are asked for are in memory, for as long as they are used."""

    def __init__(self, mapped: np.memmap) -> None:
        self._file = Path(str(mapped.filename)).open("rb")  # noqa: SIM115 - stays the same file if the run gets another result
        self._offset, self._is_fortran = mapped.offset, mapped.flags.f_contiguous and not mapped.flags.c_contiguous
        self.shape = mapped.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        order: Literal["F", "C"] = "F" if self._is_fortran else "C"
        return np.array(np.memmap(self._file, np.float32, "r", self._offset, self.shape, order)[rows], order="C")


@lru_cache(maxsize=1)
def _embeddings(path: str, n_images: int, changed: float) -> EmbeddingFile:
    return EmbeddingFile(StoredRun(path, warn_if_unfinished=False).mapped_embeddings(n_images))


def embeddings(path: str, n_images: int) -> EmbeddingFile:
    """The embeddings of a run, checked once until another run is asked for or the run has another result."""
    file = StoredRun(path, warn_if_unfinished=False).directory.embeddings_file
    return _embeddings(path, n_images, file.stat().st_mtime)


def split_parts(path: str, n_images: int, images: np.ndarray, n: int, on_progress: OnProgress) -> np.ndarray:
    """The part of each of the ``images`` of a run that has ``n_images``."""
    return quick_refits.split_parts(embeddings(path, n_images), n, images)


def quick_refit(path: str, source: str, state: LabelState, on_progress: OnProgress) -> tuple[list[str], Predictions]:
    """A new read-out of the run at ``path``, on the embeddings of ``source``: the run whose fit was accepted last."""
    calibration = Calibration.read(StoredRun(path, warn_if_unfinished=False).directory.calibration_file)
    temperature = calibration.temperature if calibration.scores == "outputs" else 1.0
    return quick_refits.quick_refit(embeddings(source, len(state)), state, temperature, on_progress)
