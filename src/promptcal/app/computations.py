"""What the app computes from stored embeddings, in a process of its own (`side_process`): splits and quick refits.

Each function takes a callback for its progress as its last argument.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from promptcal.app import quick_refits
from promptcal.app.label_state import LabelState, Predictions
from promptcal.discovery.calibration import Calibration
from promptcal.run.stored_run import StoredRun

OnProgress = Callable[[int, int], None]


@lru_cache(maxsize=1)
def _embeddings(path: str, changed: float) -> np.ndarray:
    return StoredRun(path, warn_if_unfinished=False).embeddings()


def embeddings(path: str) -> np.ndarray:
    """The embeddings of a run, kept until another run is asked for or the run has another result."""
    return _embeddings(path, StoredRun(path, warn_if_unfinished=False).directory.embeddings_file.stat().st_mtime)


def split_parts(path: str, images: np.ndarray, n: int, on_progress: OnProgress) -> np.ndarray:
    return quick_refits.split_parts(embeddings(path)[images], n)


def quick_refit(path: str, source: str, state: LabelState, on_progress: OnProgress) -> tuple[list[str], Predictions]:
    """A new read-out of the run at ``path``, on the embeddings of ``source``: the run whose fit was accepted last."""
    calibration = Calibration.read(StoredRun(path, warn_if_unfinished=False).directory.calibration_file)
    temperature = calibration.temperature if calibration.scores == "outputs" else 1.0
    return quick_refits.quick_refit(embeddings(source), state, temperature, on_progress)
