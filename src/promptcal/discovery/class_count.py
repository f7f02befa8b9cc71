"""Estimates the number of classes, known and new.

The calibrated search gives a number with an interval (`hidden_classes`). The published search is the procedure of Vaze
et al. (CVPR 2022): run plain k-means on all images, compute the accuracy of the labelled images under the best matching
of clusters to classes, and search for its maximum over K. The grid search has two additions: a coarse grid of K comes
first, because the accuracy is not unimodal, and Brent's search refines the best one. Few labels cannot separate
neighbouring K, so among those within one standard error of the best accuracy, the silhouette decides.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from pydantic import field_serializer
from scipy.optimize import minimize_scalar
from torch import Tensor

from promptcal.discovery.hidden_classes import (
    EXPECTED_STEPS,
    Calibrated,
    CalibratedCount,
    can_calibrate,
    count_with_interval,
)
from promptcal.discovery.known_share import ImageCounts
from promptcal.discovery.trials import Trial, Trials
from promptcal.errors import ConfigError, LabelError, PromptCALWarning
from promptcal.runtime.frames import data_frame
from promptcal.runtime.json_model import JSONModel

_MAX_CLASSES = 1000
_GRID = 8
_EXPECTED_TRIALS = _GRID + 8  # approximately; the search has no fixed number
_BY_ACCURACY = "k-means recovers the labelled classes best"

Search = Literal["calibrated", "grid", "published"]


class CountEstimate(JSONModel):
    """The number of classes by one estimator, and calibrated on hidden known classes, with an interval.

    ``errors`` are the relative errors on hidden classes (1.1: a tenth too many), ``error`` their root mean square on a
    logarithmic scale.
    """

    estimator: str
    estimate: float
    n_classes: float
    interval: tuple[float, float]
    errors: tuple[float, ...]
    error: float

    @classmethod
    def of(cls, found: Calibrated) -> "CountEstimate":
        return cls(
            estimator=found.estimator,
            estimate=found.estimate,
            n_classes=found.n_classes,
            interval=(found.low, found.high),
            errors=tuple(math.exp(error) for error in found.errors),
            error=found.error,
        )


class ClassCount(JSONModel):
    """`class-count.json`: an estimate, and its trials of k-means sorted by number of classes.

    ``interval`` has the truth with a probability of 95 % if new classes are like the known ones; None if there are too
    few known classes to hide some, or if the search has no interval. ``estimates`` are all estimators, the one that was
    used first, and ``reason`` says why.
    """

    n_classes: int
    trials: tuple[Trial, ...]
    bounds: tuple[int, int]
    interval: tuple[int, int] | None = None
    estimates: tuple[CountEstimate, ...] = ()
    reason: str = _BY_ACCURACY

    @field_serializer("trials")
    def _by_name(self, trials: tuple[Trial, ...]) -> list[dict[str, Any]]:
        return [trial._asdict() for trial in trials]

    def __repr__(self) -> str:
        low, high = self.bounds
        between = "" if self.interval is None else f", between {self.interval[0]} and {self.interval[1]}"
        return f"ClassCount({self.n_classes} classes{between}; tried {len(self.trials)} numbers from {low} to {high})"

    @property
    def description(self) -> str:
        """The estimate and its interval in words."""
        if self.interval is None:
            return f"{self.n_classes} classes"
        return f"about {self.n_classes} classes, between {self.interval[0]} and {self.interval[1]}"

    @property
    def start(self) -> int:
        """The number that training starts with: the upper end of the interval. Too many categories can be merged."""
        return self.n_classes if self.interval is None else self.interval[1]

    def to_pandas(self) -> Any:
        """A data frame with a row for each number of classes that was tried."""
        return data_frame({name: [getattr(trial, name) for trial in self.trials] for name in Trial._fields})

    @property
    def at_bound(self) -> bool:
        return self.n_classes in self.bounds


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


def expected_steps(labels: np.ndarray, search: Search) -> int:
    """How many steps `count_classes` reports, approximately."""
    return EXPECTED_STEPS if search == "calibrated" and can_calibrate(labels) else _EXPECTED_TRIALS


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
    search: Search = "grid",
    images: ImageCounts | None = None,
    on_step: Callable[[str], None] = lambda note: None,
) -> ClassCount:
    """Estimate the number of classes of embeddings with some labels (-1 = unlabelled), at most ``max_classes``.

    ``search="calibrated"`` hides known classes and gives an interval; with fewer than 4 known classes it is "grid".
    ``search="published"`` is the procedure of Vaze et al., and "grid" is that with the two additions.
    ``images`` are the numbers of all images if the features are those of a part of them.
    """
    low, n = len(np.unique(labels[labels >= 0])), len(features)
    if low < 2:
        raise LabelError("estimating the number of classes needs labelled images of at least 2 classes; label more")
    high = min(_MAX_CLASSES, n) if search == "published" else default_max_classes(low, n)
    high = high if max_classes is None else max_classes
    if not low < high <= n:
        raise ConfigError(f"max_classes must be above the {low} known classes and at most the {n} images, not {high}")
    if search == "calibrated" and can_calibrate(labels):
        found = count_with_interval(
            features, labels, max_classes=high, max_iter=max_iter, tol=tol, seed=seed, images=images, on_step=on_step
        )
        count = _described(found, (low, high))
    else:

        def show(trial: Trial) -> None:
            on_step(f"{trial.n_classes} classes: {100 * trial.accuracy:.1f} %")

        trials = Trials(features, labels, n_init=n_init, max_iter=max_iter, tol=tol, seed=seed, on_trial=show)
        if search == "published":
            search_brent(lambda n_classes: trials(n_classes).accuracy, low, high)
            best = max(trials, key=lambda trial: trial.accuracy)
        else:
            best = _search_grid(trials, low, high)
        missing = "; an interval needs two labels of each of 4 known classes" if search == "calibrated" else ""
        count = ClassCount(
            n_classes=best.n_classes, trials=tuple(trials), bounds=(low, high), reason=_BY_ACCURACY + missing
        )
    _warn_at_bound(count)
    return count


def _described(found: CalibratedCount, bounds: tuple[int, int]) -> ClassCount:
    best = found.estimates[0]
    return ClassCount(
        n_classes=round(best.n_classes),
        trials=found.trials,
        bounds=bounds,
        interval=(math.floor(best.low + 1e-9), math.ceil(best.high - 1e-9)),
        estimates=tuple(CountEstimate.of(estimate) for estimate in found.estimates),
        reason=f"by the {best.estimator}, whose error on hidden known classes is {100 * best.error:.0f} %",
    )


def _warn_at_bound(count: ClassCount) -> None:
    if count.at_bound:
        advice = "that of the known ones: none are new, or the embeddings do not separate them; check the curves"
        if count.n_classes > count.bounds[0]:
            advice = "the largest number that was tried, so there may be more; raise max_classes"
        warnings.warn(f"the estimate of {count.n_classes} classes is {advice}", PromptCALWarning, stacklevel=3)
