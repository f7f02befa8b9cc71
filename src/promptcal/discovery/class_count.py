"""Estimates the number of classes, known and new: the number of clusters at which k-means best finds labelled classes.

The procedure of Vaze et al. (CVPR 2022): run plain k-means on all images, compute the accuracy of the labelled images
under the best matching of clusters to classes, and search for its maximum over K. Two additions: a coarse grid of K
comes first, because the accuracy is not unimodal, and Brent's search refines the best one. Few labels cannot separate
neighbouring K, so among those within one standard error of the best accuracy, the silhouette decides.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import field_serializer
from scipy.optimize import minimize_scalar
from torch import Tensor

from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.errors import ConfigError, LabelError, PromptCALWarning
from promptcal.metrics import discovery_accuracy, silhouette
from promptcal.runtime.frames import data_frame
from promptcal.runtime.json_model import JSONModel

_MAX_CLASSES = 1000
_GRID = 8
EXPECTED_TRIALS = _GRID + 8  # approximately; the search has no fixed number
_SILHOUETTE_POINTS = 2000


class Trial(NamedTuple):
    """k-means at one number of classes: accuracy on the labelled images, and quality of the clusters."""

    n_classes: int
    accuracy: float
    silhouette: float
    inertia: float


class ClassCount(JSONModel):
    """`class-count.json`: an estimate, and its trials sorted by number of classes."""

    n_classes: int
    trials: tuple[Trial, ...]
    bounds: tuple[int, int]

    @field_serializer("trials")
    def _by_name(self, trials: tuple[Trial, ...]) -> list[dict[str, Any]]:
        return [trial._asdict() for trial in trials]

    def __repr__(self) -> str:
        low, high = self.bounds
        return f"ClassCount({self.n_classes} classes; tried {len(self.trials)} numbers from {low} to {high})"

    def to_pandas(self) -> Any:
        """A data frame with a row for each number of classes that was tried."""
        return data_frame({name: [getattr(trial, name) for trial in self.trials] for name in Trial._fields})

    @property
    def at_bound(self) -> bool:
        return self.n_classes in self.bounds


class Trials:
    """Runs k-means at any number of classes and caches the result."""

    def __init__(
        self,
        features: Tensor,
        labels: np.ndarray,
        *,
        n_init: int,
        max_iter: int,
        tol: float,
        seed: int,
        on_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.features = features
        self.labelled = np.flatnonzero(labels >= 0)
        self.labels = labels[self.labelled]
        self.n_init, self.max_iter, self.tol, self.seed = n_init, max_iter, tol, seed
        self.on_trial = on_trial
        order = np.random.default_rng(seed).permutation(len(features))
        self.sample = torch.from_numpy(np.sort(order[:_SILHOUETTE_POINTS]))
        self._done: dict[int, Trial] = {}

    def __call__(self, n_classes: int) -> Trial:
        if n_classes not in self._done:
            self._done[n_classes] = self._run(n_classes)
            self.on_trial(self._done[n_classes])
        return self._done[n_classes]

    def __iter__(self) -> Iterator[Trial]:
        return iter(sorted(self._done.values()))

    def near_best(self) -> list[Trial]:
        """The trials whose accuracy is within one standard error (Agresti-Coull) of the best."""
        best, n = max(trial.accuracy for trial in self), len(self.labels) + 4
        share = (best * len(self.labels) + 2) / n
        return [trial for trial in self if trial.accuracy >= best - math.sqrt(share * (1 - share) / n)]

    def bracket(self, trials: list[Trial]) -> tuple[int, int]:
        """The nearest tried numbers below and above these trials."""
        below = [n for n in self._done if n < min(trials).n_classes]
        above = [n for n in self._done if n > max(trials).n_classes]
        return max(below, default=min(trials).n_classes), min(above, default=max(trials).n_classes)

    def _run(self, n_classes: int) -> Trial:
        kmeans = SemiSupervisedKMeans(n_classes, self.n_init, self.max_iter, self.tol, self.seed).fit(self.features)
        clusters = torch.from_numpy(kmeans.labels_)[self.sample]
        return Trial(
            n_classes,
            discovery_accuracy(self.labels, kmeans.labels_[self.labelled], np.unique(self.labels)).all,
            silhouette(self.features[self.sample], clusters.to(self.features.device)),
            kmeans.inertia_,
        )


def search_brent(score: Callable[[int], float], low: int, high: int) -> None:
    """Brent's bounded search for the integer with the highest score; ``score`` sees every integer it tries."""
    if low < high:
        options = {"xatol": 0.5, "maxiter": 40}
        minimize_scalar(lambda x: -score(round(float(x))), bounds=(low, high), method="bounded", options=options)


def _search_grid(trials: Trials, low: int, high: int) -> Trial:
    """The best trial of a coarse grid, refined by Brent's search; the silhouette decides among equal accuracies."""
    for n_classes in sorted({round(k) for k in np.geomspace(low, high, _GRID)}):
        trials(n_classes)
    most_accurate = max(trials, key=lambda trial: (trial.accuracy, trial.silhouette))
    search_brent(lambda n: trials(n).accuracy, *trials.bracket([most_accurate]))
    least = min(trial.accuracy for trial in trials.near_best())
    # a trial that is not near the best scores lower than any that is
    search_brent(lambda n: trials(n).silhouette - 2 * (trials(n).accuracy < least), *trials.bracket(trials.near_best()))
    return max(trials.near_best(), key=lambda trial: trial.silhouette)


def default_max_classes(n_known: int, n_images: int) -> int:
    """A tenth of the number of images, at most 1,000, and more than the known classes."""
    return min(max(n_known + 1, min(_MAX_CLASSES, n_images // 10)), n_images)


def count_classes(
    features: Tensor,
    labels: np.ndarray,
    *,
    max_classes: int | None = None,
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    seed: int = 0,
    search: Literal["grid", "published"] = "grid",
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> ClassCount:
    """Estimate the number of classes of embeddings with some labels (-1 = unlabelled), at most ``max_classes``.

    ``search="published"`` is the procedure of Vaze et al. without the two additions.
    """
    low = len(np.unique(labels[labels >= 0]))
    if low < 2:
        raise LabelError("estimating the number of classes needs labelled images of at least 2 classes; label more")
    default = min(_MAX_CLASSES, len(features)) if search == "published" else default_max_classes(low, len(features))
    high = default if max_classes is None else max_classes
    if not low < high <= len(features):
        raise ConfigError(
            f"max_classes must be above the {low} known classes and at most the {len(features)} images, not {high}"
        )
    trials = Trials(features, labels, n_init=n_init, max_iter=max_iter, tol=tol, seed=seed, on_trial=on_trial)
    if search == "published":
        search_brent(lambda n: trials(n).accuracy, low, high)
        best = max(trials, key=lambda trial: trial.accuracy)
    else:
        best = _search_grid(trials, low, high)
    count = ClassCount(n_classes=best.n_classes, trials=tuple(trials), bounds=(low, high))
    if count.at_bound:
        advice = "that of the known ones: none are new, or the embeddings do not separate them; check the curves"
        if count.n_classes > low:
            advice = "the largest number that was tried, so there may be more; raise max_classes"
        warnings.warn(f"the estimate of {count.n_classes} classes is {advice}", PromptCALWarning, stacklevel=2)
    return count
