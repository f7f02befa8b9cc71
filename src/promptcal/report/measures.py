"""Measures of clusters and images: pure functions of embeddings, clusters and, where known, the truth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from promptcal.discovery.nearest_known import sums_by_cluster
from promptcal.metrics import contingency_table, match_clusters

N_NEIGHBOURS = 8


def cohesion(own_cosine: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """The mean cosine of each cluster's images with its centroid; NaN for an empty cluster."""
    sizes = np.bincount(clusters, minlength=n_clusters)
    sums = np.bincount(clusters, weights=own_cosine, minlength=n_clusters)
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)


def typical_order(clusters: np.ndarray, confidence: np.ndarray, own_cosine: np.ndarray) -> np.ndarray:
    """Images by cluster, then from typical to doubtful: by confidence, ties by the cosine with the centroid."""
    return np.lexsort((-own_cosine, -confidence, clusters))


def second_best(cosines: np.ndarray, clusters: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best other cluster of each image that has images, and by how much its cosine is smaller.

    If there is no other cluster, the result is the own cluster and infinity.
    """
    rows = np.arange(len(clusters))
    others = np.where(np.linalg.norm(centroids, axis=1) > 0, cosines, -np.inf)
    others[rows, clusters] = -np.inf
    second = others.argmax(axis=1)
    has_none = np.isneginf(others[rows, second])
    margins = np.where(has_none, np.inf, cosines[rows, clusters] - others[rows, second])
    return np.where(has_none, clusters, second), margins


def doubtful_margin(temperature: float) -> float:
    """Below this margin, the second-best cluster has more than half of the own cluster's softmax probability."""
    return temperature * math.log(2)


def other_category_margins(
    embeddings: np.ndarray, clusters: np.ndarray, n_clusters: int, images: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each of ``images`` the nearest other cluster, and by how much it is nearer than the image's own cluster.

    margin = max over c of z . m_c - z . m_own, with the unit embedding z, the unit centroids m_c of the other clusters,
    and the unit centroid m_own of the own cluster without the image itself. If the image is the only one of its
    cluster, or there is no other cluster, nothing can be compared: the result is the own cluster and -infinity.
    """
    sums = sums_by_cluster(embeddings, clusters, n_clusters)
    z, own, rows = embeddings[images].astype(np.float64), clusters[images], np.arange(len(images))
    lengths = np.linalg.norm(sums, axis=1)
    cosines = np.where(lengths > 0, z @ sums.T / np.maximum(lengths, 1e-12), -np.inf)
    cosines[rows, own] = -np.inf
    best = cosines.argmax(axis=1)
    without = sums[own] - z
    own_lengths = np.linalg.norm(without, axis=1)
    own_cosines = (z * without).sum(axis=1) / np.maximum(own_lengths, 1e-12)
    alone = np.bincount(clusters, minlength=n_clusters)[own] == 1
    has_none = alone | np.isneginf(cosines[rows, best])
    return np.where(has_none, own, best), np.where(has_none, -np.inf, cosines[rows, best] - own_cosines)


def nearest_neighbours(embeddings: np.ndarray, k: int = N_NEIGHBOURS) -> np.ndarray:
    """The ``k`` nearest other rows of each row of unit length, nearest first; all others if there are fewer."""
    k = min(k, len(embeddings) - 1)
    if k < 1:
        return np.empty((len(embeddings), 0), dtype=np.int64)
    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(embeddings).kneighbors(return_distance=False)


@dataclass(frozen=True)
class Confusion:
    """Counts of true classes (rows) by cluster (columns), known classes first; correct images are on the diagonal."""

    classes: list[str]
    n_known: int
    clusters: list[int]
    counts: np.ndarray
    matched_rows: list[int]  # of each column: that of its known class, else of the best matching; -1: none


def confusion(
    truth: Sequence[str | None],
    clusters: np.ndarray,
    labelled: np.ndarray,
    known_classes: Sequence[str],
    n_clusters: int,
    known_clusters: Sequence[int],
) -> Confusion | None:
    """The confusion matrix of the unlabelled images whose truth is known; None if there are none."""
    rows_of_images = zip(truth, clusters, labelled, strict=True)
    scored = [(name, cluster) for name, cluster, has_label in rows_of_images if name is not None and not has_label]
    if not scored:
        return None
    n_known = len(known_classes)
    classes = [*known_classes, *sorted({name for name, _ in scored} - set(known_classes))]
    number = {name: i for i, name in enumerate(classes)}
    rows, columns = np.array([(number[name], cluster) for name, cluster in scored]).T
    counts = contingency_table(rows, columns, len(classes), n_clusters)
    row_of = {int(cluster): int(row) for cluster, row in match_clusters(rows, columns).items()}
    new = sorted(set(range(n_clusters)) - set(known_clusters), key=lambda c: (row_of.get(c, len(classes)), c))
    order = [*known_clusters, *new]
    matched_rows = [*range(n_known), *(row_of.get(c, -1) for c in new)]
    return Confusion(classes, n_known, order, counts[:, order], matched_rows)
