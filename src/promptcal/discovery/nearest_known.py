"""The known class that is nearest to each cluster."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

_BLOCK = 4096


def sums_by_cluster(embeddings: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """The sum of the embeddings of each cluster (clusters x dim), in float64."""
    sums = np.zeros((n_clusters, embeddings.shape[1]), dtype=np.float64)
    for first in range(0, len(embeddings), _BLOCK):
        own = clusters[first : first + _BLOCK]
        members = csr_array((np.ones(len(own)), (own, np.arange(len(own)))), shape=(n_clusters, len(own)))
        sums += members @ embeddings[first : first + _BLOCK].astype(np.float64)
    return sums


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
