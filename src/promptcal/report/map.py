"""A map of the images: t-SNE of their embeddings in the plane."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from promptcal.runtime import files
from promptcal.runtime.arrays import read_arrays

_EARLY, _LATE = 250, 500
STEPS = _EARLY + _LATE
_EVERY = 10
_FEWEST = 30  # with fewer, neighbourhoods mean little and t-SNE draws everything to one point: principal components


def plane(
    embeddings: np.ndarray, *, seed: int = 0, on_progress: Callable[[int], None] = lambda done: None
) -> np.ndarray:
    """Coordinates in [-1, 1] of each embedding; the same for the same seed."""
    n = len(embeddings)
    if n < _FEWEST:
        return _scaled(np.pad(_principal(embeddings.astype(np.float64), 2), ((0, 0), (0, 2)))[:, :2])
    from openTSNE import TSNEEmbedding, affinity, initialization

    reduced = _principal(embeddings.astype(np.float64), 50)
    near = affinity.PerplexityBasedNN(
        reduced, perplexity=min(30.0, (n - 1) / 3), method="exact", n_jobs=1, random_state=seed
    )
    start = initialization.pca(reduced, random_state=seed)
    # one thread, for sums in another order would lead to another map
    points = TSNEEmbedding(
        start, near, negative_gradient_method="fft" if n > 3000 else "bh", n_jobs=1, random_state=seed
    )
    done = 0

    def report(iteration: int, error: float, embedding: np.ndarray) -> bool:
        on_progress(min(STEPS, done + iteration))
        return False

    options = {"callbacks": report, "callbacks_every_iters": _EVERY}
    points = points.optimize(_EARLY, exaggeration=min(12.0, n / 10), momentum=0.5, **options)
    done = _EARLY
    points = points.optimize(_LATE, momentum=0.8, **options)
    on_progress(STEPS)
    return _scaled(np.asarray(points, dtype=np.float64))


def _scaled(points: np.ndarray) -> np.ndarray:
    """Around 0, with the farthest coordinate at 1."""
    centred = points - (points.max(axis=0) + points.min(axis=0)) / 2
    return (centred / max(np.abs(centred).max(), 1e-12)).astype(np.float32)


def _principal(points: np.ndarray, most: int) -> np.ndarray:
    """The first principal components: neighbourhoods are found faster there, and are nearly the same."""
    centred = points - points.mean(axis=0)
    if centred.shape[1] <= most:
        return centred
    _, axes = np.linalg.eigh(centred.T @ centred)
    return centred @ axes[:, ::-1][:, :most]


def write_map(path: Path, images: np.ndarray, coordinates: np.ndarray) -> None:
    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, images=images, coordinates=coordinates)

    files.write_with(path, save)


def read_map(path: Path, images: np.ndarray, made_after: Path) -> np.ndarray | None:
    """The stored map of these very images, unless it is damaged or the embeddings are younger."""
    if not path.is_file() or os.stat(path).st_mtime < os.stat(made_after).st_mtime:
        return None
    try:
        of, coordinates = read_arrays(path, "images", "coordinates")
    except ValueError:  # damaged: made anew
        return None
    fits = np.array_equal(of, images) and coordinates.shape == (len(images), 2) and coordinates.dtype.kind == "f"
    return coordinates if fits and np.isfinite(coordinates).all() else None
