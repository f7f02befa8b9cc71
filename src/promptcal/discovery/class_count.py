"""How many classes there are, known and new: the number of clusters at which k-means best finds the labelled classes.

The procedure of Vaze et al. (CVPR 2022): plain k-means over all images, labels unseen, then the accuracy of the
labelled ones under the best matching of clusters to classes; its maximum over K is searched for. Two things are
added. That accuracy is neither smooth nor single-peaked, so a coarse grid of K comes first and the search refines
around its best. And few labels do not tell neighbouring K apart, so among those within one standard error of the best
accuracy the silhouette decides.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.errors import ConfigError, LabelError, PromptCALWarning
from promptcal.metrics import discovery_accuracy, silhouette

_MOST_CLASSES = 1000
_GRID = 8
EXPECTED_TRIALS = _GRID + 8  # about; the search ends when it ends
_SILHOUETTE_POINTS = 2000


class Trial(NamedTuple):
    """k-means at one number of classes: how well it finds the labelled classes, and how tight its clusters are."""

    n_classes: int
    accuracy: float
    silhouette: float
    inertia: float


@dataclass(frozen=True)
class ClassCount:
    """An estimate, and all that was tried for it, by number of classes."""

    n_classes: int
    trials: tuple[Trial, ...]
    bounds: tuple[int, int]
    search: str

    @property
    def at_bound(self) -> bool:
        return self.n_classes in self.bounds


class Trials:
    """Clusters at any number of classes, and remembers: no number is clustered twice."""

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
            self._done[n_classes] = self._try(n_classes)
            self.on_trial(self._done[n_classes])
        return self._done[n_classes]

    def __iter__(self) -> Iterator[Trial]:
        return iter(sorted(self._done.values()))

    def rivals(self) -> list[Trial]:
        """The trials whose accuracy is within one standard error (Agresti and Coull's) of the best."""
        best, n = max(trial.accuracy for trial in self), len(self.labels) + 4
        share = (best * len(self.labels) + 2) / n
        return [trial for trial in self if trial.accuracy >= best - math.sqrt(share * (1 - share) / n)]

    def span(self, trials: list[Trial]) -> tuple[int, int]:
        """From the number tried just below these to the one just above."""
        below = [n for n in self._done if n < min(trials).n_classes]
        above = [n for n in self._done if n > max(trials).n_classes]
        return max(below, default=min(trials).n_classes), min(above, default=max(trials).n_classes)

    def _try(self, n_classes: int) -> Trial:
        kmeans = SemiSupervisedKMeans(n_classes, self.n_init, self.max_iter, self.tol, self.seed).fit(self.features)
        clusters = torch.from_numpy(kmeans.labels_)[self.sample]
        return Trial(
            n_classes,
            discovery_accuracy(self.labels, kmeans.labels_[self.labelled], np.unique(self.labels)).all,
            silhouette(self.features[self.sample], clusters.to(self.features.device)),
            kmeans.inertia_,
        )


def brent(score: Callable[[int], float], low: int, high: int) -> None:
    """Brent's bounded search for the whole number of the highest score: golden sections and parabolas."""
    if low == high:
        return
    minimize_scalar(
        lambda x: -score(round(float(x))), bounds=(low, high), method="bounded", options={"xatol": 0.5, "maxiter": 40}
    )


def bisection(score: Callable[[int], float], low: int, high: int) -> None:
    """Halve the interval around the best of its three inner quarter points until three numbers are left."""
    while high - low > 2:
        middle = (low + high) // 2
        left, right = (low + middle) // 2, (middle + high + 1) // 2
        best = max((middle, left, right), key=score)
        if best == middle:
            low, high = left, right
        else:
            low, high = (low, middle) if best == left else (middle, high)
    for n_classes in range(low, high + 1):
        score(n_classes)


SEARCHES: dict[str, Callable[[Callable[[int], float], int, int], None]] = {"brent": brent, "bisection": bisection}


def default_max_classes(n_known: int, n_images: int) -> int:
    """A tenth as many as images, at most 1,000, and more than are known."""
    return min(max(n_known + 1, min(_MOST_CLASSES, n_images // 10)), n_images)


def count_classes(
    features: Tensor,
    labels: np.ndarray,
    *,
    max_classes: int | None = None,
    search: str = "brent",
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    seed: int = 0,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> ClassCount:
    """The number of classes of embeddings of which some are labelled (-1 = unlabelled), at most ``max_classes``."""
    if search not in SEARCHES:
        raise ConfigError(f"there is no search {search!r}; choose {' or '.join(SEARCHES)}")
    known = len(np.unique(labels[labels >= 0]))
    if known < 2:
        raise LabelError("the number of classes is estimated by labelled images of at least 2 classes; label more")
    low, high = known, default_max_classes(known, len(features)) if max_classes is None else max_classes
    if not low < high <= len(features):
        raise ConfigError(
            f"the most classes must be more than the {known} known ones and at most as many as the {len(features)} "
            f"images, not {high}"
        )
    trials = Trials(features, labels, n_init=n_init, max_iter=max_iter, tol=tol, seed=seed, on_trial=on_trial)
    for n_classes in sorted({round(k) for k in np.geomspace(low, high, _GRID)}):
        trials(n_classes)
    SEARCHES[search](lambda n: trials(n).accuracy, *trials.span([max(trials, key=_by_accuracy)]))
    least = min(trial.accuracy for trial in trials.rivals())
    SEARCHES[search](lambda n: _silhouette_of_rivals(trials(n), least), *trials.span(trials.rivals()))
    best = max(trials.rivals(), key=lambda trial: trial.silhouette)
    count = ClassCount(best.n_classes, tuple(trials), (low, high), search)
    if count.at_bound:
        _warn_at_bound(count)
    return count


def _by_accuracy(trial: Trial) -> tuple[float, float]:
    return trial.accuracy, trial.silhouette


def _silhouette_of_rivals(trial: Trial, least_accuracy: float) -> float:
    return trial.silhouette - (2.0 if trial.accuracy < least_accuracy else 0.0)  # below that of any rival


def _warn_at_bound(count: ClassCount) -> None:
    if count.n_classes == count.bounds[0]:
        advice = "no more than are known, so either nothing is new or the embeddings do not tell; look at the curves"
    else:
        advice = "the most that were allowed, so there may be more; allow more"
    warnings.warn(f"the estimate of {count.n_classes} classes is {advice}", PromptCALWarning, stacklevel=3)
