"""The number of clusters of embeddings without labels: where the silhouette of k-means is largest."""

import math

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.metrics import silhouette

_ALL_UP_TO = 8  # clusters; above, numbers are tried in steps of a quarter
_STEP = 1.25
_MOST = 1000
_ROWS_PER_CLUSTER = 5  # at least, on average
_MOST_ROWS = 2000  # that are compared


def count_by_silhouette(features: Tensor, labels: np.ndarray, *, n_init: int, seed: int) -> int:
    """Labelled classes (-1 = unlabelled) keep to their own clusters, so that there are at least as many."""
    n_known = len(np.unique(labels[labels >= 0]))
    least, most = max(2, n_known), max(2, n_known + 1, min(_MOST, len(features) // _ROWS_PER_CLUSTER))
    least = min(least, len(features))
    rows = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(len(features))[:_MOST_ROWS]))
    found: dict[int, float] = {}
    for n in _candidates(least, min(most, n_known + int((labels < 0).sum()))):
        kmeans = SemiSupervisedKMeans(n, n_init, random_state=seed, max_points_per_cluster=128).fit(features, labels)
        clusters = torch.from_numpy(kmeans.labels_)[rows].to(features.device)
        score = silhouette(features[rows.to(features.device)], clusters)
        found[n] = -1.0 if math.isnan(score) else score
    return max(found, key=lambda n: found[n], default=least)


def _candidates(least: int, most: int) -> list[int]:
    found = [n for n in range(least, _ALL_UP_TO + 1) if n <= most]
    n = max(least, _ALL_UP_TO)
    while n <= most:
        found.append(n)
        n = max(n + 1, round(n * _STEP))
    return sorted(set(found))
