"""Clustering accuracy for category discovery: clusters are matched to classes, then scored as All / Known / New."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment


@dataclass(frozen=True)
class DiscoveryAccuracy:
    """Shares in [0, 1]; NaN where there is nothing to score.

    ``all``, ``known`` and ``new`` come from one matching over all points (what papers report).
    The ``separate_`` ones match known and new points each on their own (the older, kinder variant);
    ``separate_all`` is their mean weighted by points.
    """

    all: float
    known: float
    new: float
    separate_all: float
    separate_known: float
    separate_new: float

    def __str__(self) -> str:
        return f"All {100 * self.all:.1f}  Known {100 * self.known:.1f}  New {100 * self.new:.1f}"


def match_clusters(y_true: np.ndarray, y_pred: np.ndarray) -> dict[Any, Any]:
    """The one-to-one map cluster -> class that gets the most points right (Hungarian algorithm)."""
    classes, class_ids = np.unique(y_true, return_inverse=True)
    clusters, cluster_ids = np.unique(y_pred, return_inverse=True)
    overlap = np.zeros((len(clusters), len(classes)), dtype=np.int64)
    np.add.at(overlap, (cluster_ids, class_ids), 1)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    return {clusters[r]: classes[c] for r, c in zip(rows, columns, strict=True)}


def _hits(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    mapping = match_clusters(y_true, y_pred)
    return np.fromiter(
        (p in mapping and mapping[p] == t for t, p in zip(y_true, y_pred, strict=True)), bool, len(y_true)
    )


def _mean(hits: np.ndarray) -> float:
    return float(hits.mean()) if len(hits) else float("nan")


def discovery_accuracy(y_true: Any, y_pred: Any, known_classes: Iterable[Any]) -> DiscoveryAccuracy:
    """Accuracy of predicted clusters against true classes, over all, known and new points.

    >>> discovery_accuracy(["cat", "cat", "dog", "dog", "emu"], [7, 7, 3, 7, 1], known_classes=["cat"]).all
    0.8
    """
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if y_true.shape != y_pred.shape or y_true.ndim != 1:
        raise ValueError(f"y_true and y_pred must be 1-D of equal length, not {y_true.shape} and {y_pred.shape}")
    known = np.isin(y_true, np.asarray(list(known_classes)))
    joint = _hits(y_true, y_pred)
    separate = np.zeros(len(y_true), dtype=bool)
    for part in (known, ~known):
        separate[part] = _hits(y_true[part], y_pred[part])
    return DiscoveryAccuracy(
        all=_mean(joint),
        known=_mean(joint[known]),
        new=_mean(joint[~known]),
        separate_all=_mean(separate),
        separate_known=_mean(separate[known]),
        separate_new=_mean(separate[~known]),
    )
