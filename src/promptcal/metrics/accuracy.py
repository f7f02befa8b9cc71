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
    rows, columns = _best_pairs(cluster_ids, class_ids, len(clusters), len(classes))
    return {clusters[r]: classes[c] for r, c in zip(rows, columns, strict=True)}


def _best_pairs(
    cluster_ids: np.ndarray, class_ids: np.ndarray, n_clusters: int, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    overlap = np.bincount(cluster_ids * n_classes + class_ids, minlength=n_clusters * n_classes)
    return linear_sum_assignment(overlap.reshape(n_clusters, n_classes), maximize=True)


def _hits(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    classes, class_ids = np.unique(y_true, return_inverse=True)
    clusters, cluster_ids = np.unique(y_pred, return_inverse=True)
    rows, columns = _best_pairs(cluster_ids, class_ids, len(clusters), len(classes))
    matched = np.full(len(clusters), -1)
    matched[rows] = columns
    return matched[cluster_ids] == class_ids


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


def contingency_table(rows: np.ndarray, columns: np.ndarray, n_rows: int, n_columns: int) -> np.ndarray:
    """How often each pair (row, column) occurs; pairs with -1 on either side are ignored."""
    both = (rows >= 0) & (columns >= 0)
    counts = np.bincount(rows[both] * n_columns + columns[both], minlength=n_rows * n_columns)
    return counts.reshape(n_rows, n_columns)
