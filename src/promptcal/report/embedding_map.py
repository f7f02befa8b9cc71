"""A two-dimensional map of the images: t-SNE of their embeddings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from openTSNE import TSNEEmbedding, affinity, initialization

from promptcal.report.array_files import read_if_newer

_EARLY_ITERATIONS, _LATE_ITERATIONS = 250, 250
N_ITERATIONS = _EARLY_ITERATIONS + _LATE_ITERATIONS
_MIN_IMAGES = 30  # t-SNE of fewer images collapses to one point; principal components are used instead
_N_COMPONENTS = 50  # in which neighbours are found faster and are nearly the same


def compute_map(
    embeddings: np.ndarray, *, seed: int = 0, on_progress: Callable[[int], None] = lambda done: None
) -> np.ndarray:
    """Coordinates of each embedding in [-1, 1] (n x 2); the same for the same seed."""
    n = len(embeddings)
    if n < _MIN_IMAGES:
        components = _principal_components(embeddings, 2)
        return _scale(np.pad(components, ((0, 0), (0, 2 - components.shape[1]))))
    reduced = _principal_components(embeddings, _N_COMPONENTS)
    fixed: Any = {"n_jobs": 1, "random_state": seed}  # one thread: another order of summation gives another map
    affinities = affinity.PerplexityBasedNN(reduced, perplexity=min(30.0, (n - 1) / 3), method="exact", **fixed)
    start = initialization.pca(reduced, random_state=seed)
    # twice as wide intervals of the interpolation: four times fewer points, and nearly the same neighbours
    fixed |= (
        {"negative_gradient_method": "fft", "ints_in_interval": 2} if n > 3000 else {"negative_gradient_method": "bh"}
    )
    points = TSNEEmbedding(start, affinities, **fixed)
    early = {"n_iter": _EARLY_ITERATIONS, "exaggeration": min(12.0, n / 10), "momentum": 0.5}
    late = {"n_iter": _LATE_ITERATIONS, "momentum": 0.8}
    for options, already_done in ((early, 0), (late, _EARLY_ITERATIONS)):

        def report(iteration: int, *_: object, already_done: int = already_done) -> None:
            on_progress(already_done + iteration)

        points = points.optimize(callbacks=report, callbacks_every_iters=10, **options)
    on_progress(N_ITERATIONS)
    return _scale(np.asarray(points, dtype=np.float64))


def _principal_components(embeddings: np.ndarray, n_components: int) -> np.ndarray:
    """The first ``n_components`` at most; there are fewer for few or short embeddings."""
    centred = embeddings - embeddings.mean(axis=0, dtype=np.float64)
    directions = np.linalg.eigh(centred.T @ centred).eigenvectors[:, ::-1]
    return centred @ directions[:, : min(n_components, *embeddings.shape)]


def _scale(points: np.ndarray) -> np.ndarray:
    """Centred at 0, with the largest coordinate at 1."""
    centred = points - (points.max(axis=0) + points.min(axis=0)) / 2
    return (centred / max(np.abs(centred).max(), 1e-12)).astype(np.float32)


def read_map(path: Path, images: np.ndarray, embeddings_file: Path) -> np.ndarray | None:
    """The stored map of exactly these images; None if it is damaged or older than the embeddings."""
    stored = read_if_newer(path, embeddings_file, "images", "coordinates")
    if stored is None:
        return None
    stored_images, coordinates = stored
    is_map = coordinates.shape == (len(images), 2) and coordinates.dtype.kind == "f" and np.isfinite(coordinates).all()
    return coordinates if is_map and np.array_equal(stored_images, images) else None
