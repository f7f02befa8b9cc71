"""Clustering accuracy for category discovery: clusters are matched to classes, then scored as All / Known / New."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from promptcal.runtime.frames import data_frame


@dataclass(frozen=True, repr=False)
class DiscoveryAccuracy:
    """Accuracies in [0, 1]; NaN if there are no points to score.

    Attributes:
        all: Accuracy on all points, with one matching of all points, as papers report.
        known: Accuracy on the points of known classes, with the same matching.
        new: Accuracy on the points of new classes, with the same matching.
        separate_all: As ``all``, but known and new points are matched separately (an older, more lenient protocol).
        separate_known: Accuracy on the points of known classes, matched separately.
        separate_new: Accuracy on the points of new classes, matched separately.
        nmi: Normalised mutual information of all points (arithmetic mean); needs no matching.
        ari: Adjusted Rand index of all points, at most 1, 0 for random clusters; needs no matching.
    """

    all: float
    known: float
    new: float
    separate_all: float
    separate_known: float
    separate_new: float
    nmi: float
    ari: float

    def __str__(self) -> str:
        return f"All {100 * self.all:.1f}  Known {100 * self.known:.1f}  New {100 * self.new:.1f}"

    def __repr__(self) -> str:
        return f"DiscoveryAccuracy({', '.join(f'{key}={value:.3f}' for key, value in asdict(self).items())})"

    def _repr_html_(self) -> str:
        rows = (f"<tr><td>{key}</td><td>{value:.3f}</td></tr>" for key, value in asdict(self).items())
        return f"<table>{''.join(rows)}</table>"

    def to_pandas(self) -> Any:
        """A data frame with one row."""
        return data_frame({key: [value] for key, value in asdict(self).items()})


def contingency_table(rows: np.ndarray, columns: np.ndarray, n_rows: int, n_columns: int) -> np.ndarray:
    """How often each pair of numbers occurs (n_rows x n_columns); pairs with -1 on either side are ignored.

    scikit-learn's ``contingency_matrix`` builds its table in the same way, but omits rows and columns without points.
    """
    counted = (rows >= 0) & (columns >= 0)
    pairs = (rows[counted], columns[counted])
    return coo_matrix((np.ones(len(pairs[0]), dtype=np.int64), pairs), (n_rows, n_columns)).toarray()


def match_clusters(y_true: np.ndarray, y_pred: np.ndarray) -> dict[Any, Any]:
    """The one-to-one map cluster -> class with the most correct points (Hungarian algorithm)."""
    classes, class_ids = np.unique(y_true, return_inverse=True)
    clusters, cluster_ids = np.unique(y_pred, return_inverse=True)
    overlap = contingency_table(cluster_ids, class_ids, len(clusters), len(classes))
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    return dict(zip(clusters[rows].tolist(), classes[columns].tolist(), strict=True))


def _is_correct(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    """For each point, whether its cluster is matched to its class."""
    class_of = match_clusters(y_true, y_pred)
    pairs = zip(y_true.tolist(), y_pred.tolist(), strict=True)
    return np.fromiter((class_of.get(cluster) == own for own, cluster in pairs), bool, len(y_true))


def discovery_accuracy(y_true: Any, y_pred: Any, known_classes: Iterable[Any]) -> DiscoveryAccuracy:
    r"""Accuracy of predicted clusters against true classes, over all, known and new points.

    With $y_i$ the true class and $\hat{y}_i$ the cluster of point i,

    $$\text{ACC} = \max_{p} \frac{1}{N} \sum_{i=1}^N 1[y_i = p(\hat{y}_i)],$$

    where p runs over the one-to-one maps from clusters to classes (found with the Hungarian algorithm). ``known`` and
    ``new`` average over the points of known and of new classes under the same p. ``nmi`` and ``ari`` are scikit-learn's
    ``normalized_mutual_info_score`` and ``adjusted_rand_score``.

    Args:
        y_true: The class of each point (N), of any type that can be sorted.
        y_pred: The cluster of each point (N), of any type that can be sorted; its values have no meaning.
        known_classes: The classes that had labels; all others are new.

    Returns:
        All accuracies, from 0 to 1.

    Examples:
        >>> accuracy = discovery_accuracy(["cat", "cat", "dog", "dog", "emu"], [7, 7, 3, 7, 1], known_classes=["cat"])
        >>> accuracy.all, accuracy.known, round(accuracy.new, 3)
        (0.8, 1.0, 0.667)
    """
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if y_true.shape != y_pred.shape or y_true.ndim != 1:
        raise ValueError(f"y_true and y_pred must be 1-D of equal length, not {y_true.shape} and {y_pred.shape}")
    known = np.isin(y_true, np.asarray(list(known_classes)))
    joint = _is_correct(y_true, y_pred)
    separate = np.zeros(len(y_true), dtype=bool)
    for part in (known, ~known):
        separate[part] = _is_correct(y_true[part], y_pred[part])
    parts = [correct[group] for correct in (joint, separate) for group in (slice(None), known, ~known)]
    accuracies = [float(part.mean()) if len(part) else float("nan") for part in parts]
    return DiscoveryAccuracy(*accuracies, *_nmi_and_ari(y_true, y_pred))


def _nmi_and_ari(y_true: np.ndarray, y_pred: np.ndarray) -> Iterable[float]:
    if not len(y_true):
        return float("nan"), float("nan")
    classes, clusters = (np.unique(values, return_inverse=True)[1] for values in (y_true, y_pred))
    return float(normalized_mutual_info_score(classes, clusters)), float(adjusted_rand_score(classes, clusters))
