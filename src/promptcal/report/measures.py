"""What a report says of clusters and images: pure functions of embeddings, clusters and, where known, the truth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptcal.metrics.accuracy import match_clusters

NEIGHBOURS = 8
_BLOCK = 1024


def unit_centres(embeddings: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """The mean embedding of each cluster, L2-normalised; 0 for an empty one."""
    sums = np.zeros((n_clusters, embeddings.shape[1]), dtype=np.float64)
    np.add.at(sums, clusters, embeddings)
    return (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)).astype(np.float32)


def cohesion(own_cosine: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """Mean cosine of each cluster's images with its centre; NaN for an empty one."""
    sizes = np.bincount(clusters, minlength=n_clusters)
    sums = np.bincount(clusters, weights=own_cosine, minlength=n_clusters)
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)


def typical_order(clusters: np.ndarray, confidence: np.ndarray, own_cosine: np.ndarray) -> np.ndarray:
    """Images by cluster, in each from typical to doubtful: by confidence, then by cosine with the centre."""
    return np.lexsort((-own_cosine, -confidence, clusters))


@dataclass(frozen=True)
class Alternatives:
    """The second-best cluster of each image, and how much nearer its own centre is than that one's (in cosine)."""

    clusters: np.ndarray
    margins: np.ndarray


def alternatives(cosines: np.ndarray, clusters: np.ndarray, centres: np.ndarray) -> Alternatives:
    """Cosines are images x clusters; empty clusters are nobody's second best."""
    rows = np.arange(len(clusters))
    others = np.where(np.linalg.norm(centres, axis=1) > 0, cosines, -np.inf)
    others[rows, clusters] = -np.inf
    second = others.argmax(axis=1)
    alone = np.isneginf(others[rows, second])
    return Alternatives(
        np.where(alone, clusters, second),
        np.where(alone, np.inf, cosines[rows, clusters] - others[rows, second]),
    )


def doubt_margin(temperature: float) -> float:
    """Below this margin the second-best cluster's softmax share is more than half of the image's own."""
    return temperature * math.log(2)


def nearest_known(centres: np.ndarray, known: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The nearest of the ``known`` clusters to each one, itself excluded, and the cosine of the centres; -1 = none."""
    numbers = np.array(known, dtype=np.int64)
    cosines = centres @ centres[numbers].T
    cosines[numbers, np.arange(len(numbers))] = -np.inf
    cosines[:, np.linalg.norm(centres[numbers], axis=1) == 0] = -np.inf
    if not len(numbers):
        return np.full(len(centres), -1), np.full(len(centres), np.nan)
    best = cosines.argmax(axis=1)
    value = cosines[np.arange(len(centres)), best]
    none = np.isneginf(value) | (np.linalg.norm(centres, axis=1) == 0)
    return np.where(none, -1, numbers[best]), np.where(none, np.nan, value)


def nearest_neighbours(embeddings: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """Each row's ``k`` nearest other rows by cosine, nearest first; fewer where there are not so many."""
    n = len(embeddings)
    k = min(k, n - 1)
    found = np.empty((n, max(k, 0)), dtype=np.int64)
    for first in range(0, n if k > 0 else 0, _BLOCK):
        cosines = embeddings[first : first + _BLOCK] @ embeddings.T
        rows = np.arange(len(cosines))
        cosines[rows, first + rows] = -np.inf
        nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        values = np.take_along_axis(cosines, nearest, axis=1)
        order = np.lexsort((nearest, -values), axis=1)
        found[first : first + _BLOCK] = np.take_along_axis(nearest, order, axis=1)
    return found


@dataclass(frozen=True)
class Confusion:
    """Counts of true classes (rows) by cluster (columns), known classes first on both sides.

    Columns stand in the order of the rows they match best, so that what is right lies on the diagonal. ``stands_for``
    is the row that each column stands for: a known class's own, or that of the best matching; -1 = none.
    """

    classes: list[str]
    n_known_classes: int
    clusters: list[int]
    n_known_clusters: int
    counts: np.ndarray
    stands_for: list[int]


def confusion(
    truth: Sequence[str | None],
    clusters: np.ndarray,
    labelled: np.ndarray,
    known_classes: Sequence[str],
    n_clusters: int,
    known_clusters: Sequence[int] | None = None,
) -> Confusion | None:
    """Over the unlabelled images whose truth is known; None if there are none.

    ``known_clusters`` are those of the known classes, by default the first ones.
    """
    scored = [i for i, name in enumerate(truth) if name is not None and not labelled[i]]
    if not scored:
        return None
    present = {truth[i] for i in scored}
    n_known = len(known_classes)
    classes = [*known_classes, *sorted(name for name in present if name is not None and name not in set(known_classes))]
    number = {name: i for i, name in enumerate(classes)}
    rows = np.array([number[truth[i]] for i in scored])  # type: ignore[index]
    columns = clusters[scored]
    counts = np.zeros((len(classes), n_clusters), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    place_of = {int(cluster): int(row) for cluster, row in match_clusters(rows, columns).items()}
    known = list(range(n_known) if known_clusters is None else known_clusters)
    new = sorted(set(range(n_clusters)) - set(known), key=lambda c: (place_of.get(c, len(classes)), c))
    order = [*known, *new]
    stands_for = [*range(n_known), *(place_of.get(c, -1) for c in new)]
    return Confusion(classes, n_known, order, n_known, counts[:, order], stands_for)
