"""The known class that is nearest to each cluster."""

from collections.abc import Sequence

import numpy as np


def sums_by_cluster(embeddings: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """The sum of the embeddings of each cluster, in float64."""
    ends = np.bincount(clusters, minlength=n_clusters).cumsum()
    members = np.split(np.argsort(clusters, kind="stable"), ends[:-1])
    return np.stack([embeddings[rows].sum(axis=0, dtype=np.float64) for rows in members])


def unit_centroids(embeddings: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """The L2-normalised mean embedding of each cluster; 0 for an empty cluster."""
    sums = sums_by_cluster(embeddings, clusters, n_clusters)
    return (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)).astype(np.float32)


def nearest_known(centroids: np.ndarray, known: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """For each cluster the nearest other one among ``known``, and the cosine of the centroids; -1 and NaN if none."""
    numbers = np.array(known, dtype=np.int64)
    if not len(numbers):
        return np.full(len(centroids), -1), np.full(len(centroids), np.nan)
    cosines = centroids @ centroids[numbers].T
    cosines[numbers, np.arange(len(numbers))] = -np.inf
    cosines[:, np.linalg.norm(centroids[numbers], axis=1) == 0] = -np.inf
    best = cosines.argmax(axis=1)
    value = cosines[np.arange(len(centroids)), best]
    has_none = np.isneginf(value) | (np.linalg.norm(centroids, axis=1) == 0)
    return np.where(has_none, -1, numbers[best]), np.where(has_none, np.nan, value)
