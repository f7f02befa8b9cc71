"""The number of classes with an interval: several estimators, calibrated on known classes that are hidden.

In each round a fifth of the known classes is hidden among the labelled images: their labels and half of the labels of
the other classes are removed. The number of classes in the labelled images is known, so every estimator's error is,
too. The estimator with the smallest error is reported; its bias is removed, and its errors give the interval.

    known share       k N / N_K, where N_K of N images are of the k known classes (`known_share`)
    labelled accuracy the K at which k-means best recovers the labelled classes
    silhouette        the K at which clusters of k-means are most compact
    head              of a trained read-out with too many outputs, how many it uses: exp(entropy of the sizes)
    merge             of too many clusters, how many are left after indistinguishable ones are merged (`links`)

All of this uses at most `MOST_IMAGES` images, so that the time is bounded.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from promptcal.discovery.heads import train_heads
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.known_share import ImageCounts, KnownShare, can_measure, measure_known_share
from promptcal.discovery.links import measure_connections
from promptcal.discovery.merging import merge_indistinguishable
from promptcal.discovery.trials import Trial, Trials
from promptcal.runtime.seeds import derive_seed

MOST_IMAGES = 8_000  # for the known share
_MOST_CLUSTERED = 1_500  # for the estimators that cluster
_MOST_IN_ROUNDS = 2_000
_STARTS = 1  # of k-means; more change the numbers little and take most of the time
_GRID = 8
_HEAD_STEPS = 40
_SILHOUETTE_POINTS = 500
_MORE = 1.5  # clusters in proportion to the largest likely number, for the head and for merging
ROUNDS = 5
COVERAGE = 0.95
_DRAWS = 1000
EXPECTED_STEPS = (ROUNDS + 1) * (_GRID + 3)  # the known share, the grid of k-means, the head and merging
_LEAST_VARIANCE = 1e-12  # of the logarithm of the number of classes
LEAST_CLASSES = 4  # so that three are left when one is hidden

SHARE = "known share"


class CountProblem(NamedTuple):
    """L2-normalised embeddings with labels (-1: none), and how many images there are in all."""

    features: Tensor
    labels: np.ndarray
    images: ImageCounts

    @property
    def n_known(self) -> int:
        return len(np.unique(self.labels[self.labels >= 0]))

    def part(self, most: int, seed: int) -> "CountProblem":
        """A random part of the images with about the same share of labels, and labels of every class if possible."""
        if len(self.labels) <= most:
            return self
        generator = np.random.default_rng(seed)
        labelled, unlabelled = np.flatnonzero(self.labels >= 0), np.flatnonzero(self.labels < 0)
        wanted = round(most * len(labelled) / len(self.labels))
        n_labelled = min(len(labelled), max(wanted, min(most // 2, 10 * self.n_known)))
        chosen = (generator.permutation(labelled)[:n_labelled], generator.permutation(unlabelled)[: most - n_labelled])
        rows = np.sort(np.concatenate(chosen))
        return CountProblem(self.features[torch.from_numpy(rows)], self.labels[rows], self.images)


class Estimates(NamedTuple):
    """The number of classes by estimator, the distribution behind the known share, and the trials of k-means."""

    numbers: dict[str, float]
    share: KnownShare
    draws: np.ndarray
    trials: tuple[Trial, ...]


class Calibrated(NamedTuple):
    """An estimate, its errors on hidden classes (log of estimate / truth) and the calibrated number with interval."""

    estimator: str
    estimate: float
    errors: tuple[float, ...]
    n_classes: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The root mean square of the errors."""
        return math.sqrt(np.mean(np.square(self.errors)))


class CalibratedCount(NamedTuple):
    """All calibrated estimates, the best first, and the trials of k-means."""

    estimates: tuple[Calibrated, ...]
    trials: tuple[Trial, ...]


def can_calibrate(labels: np.ndarray) -> bool:
    """Whether there are unlabelled images, and enough labels to hide some of the known classes."""
    return bool((labels < 0).any()) and int((np.bincount(labels[labels >= 0]) > 1).sum()) >= LEAST_CLASSES


def count_with_interval(
    features: Tensor,
    labels: np.ndarray,
    *,
    max_classes: int,
    max_iter: int,
    tol: float,
    seed: int,
    images: ImageCounts | None = None,
    on_step: Callable[[str], None] = lambda note: None,
) -> CalibratedCount:
    """Estimate the number of classes, at most ``max_classes``, from labels of at least `LEAST_CLASSES` classes.

    ``images`` are the numbers of all images if the features are those of a part of them.
    """
    problem = CountProblem(features, labels, images or ImageCounts.of(labels))
    kmeans = KMeansSettings(_STARTS, max_iter, tol)
    found = estimate(problem.part(MOST_IMAGES, seed), max_classes, kmeans, seed, on_step)
    k, bounds = problem.n_known, (problem.n_known, max_classes)
    rounds = []
    for number, (hidden, _) in enumerate(hidden_problems(problem, seed)):
        most = max(k + 1, min(len(hidden.labels) // 2, round(max_classes * k / found.numbers[SHARE])))
        rounds.append(estimate(hidden, most, kmeans, derive_seed(seed, "round", number), on_step))
    errors = {name: [math.log(again.numbers[name] / k) for again in rounds] for name in found.numbers}
    spreads = [float(np.log(again.draws).std()) for again in rounds]
    others = [_calibrate(name, value, errors[name], bounds) for name, value in found.numbers.items() if name != SHARE]
    calibrated = [*others, _calibrate_share(found, errors[SHARE], spreads, bounds)]
    return CalibratedCount(tuple(sorted(calibrated, key=lambda c: _rank(c, k))), found.trials)


def _rank(found: Calibrated, n_known: int) -> float:
    """The key that sorts estimates: the error on hidden classes. An error below half a class is chance.

    Only the interval of the known share follows from the share of new classes, which is usually larger than a fifth,
    so another estimator must have less than half of its error.
    """
    error = max(found.error, 0.5 / n_known)
    return error / 2 if found.estimator == SHARE else error


class KMeansSettings(NamedTuple):
    n_init: int
    max_iter: int
    tol: float


class HiddenProblem(NamedTuple):
    """Images with some of their labels removed, and all of their labels."""

    problem: CountProblem
    truth: np.ndarray


def hidden_problems(problem: CountProblem, seed: int) -> list[HiddenProblem]:
    """The labelled images, or part of them, with a fifth of the classes hidden; each class is hidden once.

    Half of the labels of the other classes are removed, but two are left of each. At least three problems are given if
    `can_calibrate`.
    """
    labelled = np.flatnonzero(problem.labels >= 0)
    features, labels = problem.features[torch.from_numpy(labelled)], problem.labels[labelled]
    whole = CountProblem(features, labels, ImageCounts(len(labels), 0))
    generator = np.random.default_rng(derive_seed(seed, "hidden"))
    classes = generator.permutation(np.unique(labels))
    rounds = min(ROUNDS, len(classes))
    found = []
    for number in range(rounds):
        part = whole.part(_MOST_IN_ROUNDS, derive_seed(seed, "part", number))
        found.append(_hide(part, classes[number::rounds], generator))
    return [hidden for hidden in found if can_measure(hidden.problem.labels) and hidden.problem.images.unlabelled]


def _hide(part: CountProblem, classes: np.ndarray, generator: np.random.Generator) -> HiddenProblem:
    """Remove all labels of these classes and half of those of the others, but not the last two."""
    remaining = np.full(len(part.labels), -1)
    for label in np.setdiff1d(part.labels, classes):
        members = generator.permutation(np.flatnonzero(part.labels == label))
        remaining[members[: max(2, len(members) // 2)]] = label
    return HiddenProblem(part._replace(labels=remaining, images=ImageCounts.of(remaining)), part.labels)


def estimate(
    problem: CountProblem, max_classes: int, kmeans: KMeansSettings, seed: int, on_step: Callable[[str], None]
) -> Estimates:
    """The number of classes by each estimator."""
    share = measure_known_share(problem.features, problem.labels, problem.images, seed=derive_seed(seed, "share"))
    draws = share.draw(_DRAWS, derive_seed(seed, "draws"))
    on_step(SHARE)
    part = problem.part(_MOST_CLUSTERED, derive_seed(seed, "clustered"))
    k, likely = part.n_known, float(np.quantile(draws, COVERAGE))
    most = max(k + 1, min(max_classes, len(part.labels) // 2, math.ceil(2 * likely)))
    trials = _cluster_on_grid(part, most, kmeans, seed, on_step)
    n_over = max(k + 1, min(most, math.ceil(_MORE * likely), k + int((part.labels < 0).sum())))
    over = SemiSupervisedKMeans(n_over, kmeans.n_init, kmeans.max_iter, kmeans.tol, derive_seed(seed, "over"))
    over.fit(part.features, part.labels)
    by_head = _count_by_head(part, over, seed)
    on_step("trained head")
    by_merging = _count_by_merging(part, over, seed)
    on_step("merged clusters")
    tried = np.array([trial.n_classes for trial in trials], dtype=np.float64)
    numbers = {
        SHARE: min(share.n_classes, float(max_classes)),
        "labelled accuracy": peak(tried, np.array([trial.accuracy for trial in trials])),
        "silhouette": peak(tried, np.array([trial.silhouette for trial in trials])),
        "head": by_head,
        "merge": by_merging,
    }
    return Estimates(numbers, share, draws, tuple(trials))


def _cluster_on_grid(
    part: CountProblem, most: int, kmeans: KMeansSettings, seed: int, on_step: Callable[[str], None]
) -> Trials:
    """k-means with numbers of clusters from half of the known classes to ``most``."""
    trials = Trials(
        part.features,
        part.labels,
        n_init=kmeans.n_init,
        max_iter=kmeans.max_iter,
        tol=kmeans.tol,
        seed=derive_seed(seed, "trials"),
        silhouette_points=_SILHOUETTE_POINTS,
        on_trial=lambda trial: on_step(f"{trial.n_classes} clusters"),
    )
    grid = sorted({round(number) for number in np.geomspace(max(2, part.n_known // 2), most, _GRID)})
    for number in grid:
        trials(number)
    for _ in range(_GRID - len(grid)):
        on_step("")
    return trials


def peak(numbers: np.ndarray, values: np.ndarray) -> float:
    """Where the parabola through the largest value and its neighbours, over log(number), has its maximum."""
    values = np.where(np.isfinite(values), values, -np.inf)
    best = int(values.argmax())
    if not 0 < best < len(values) - 1 or not np.isfinite(values[[best - 1, best + 1]]).all():
        return float(numbers[best])
    x = np.log(numbers[best - 1 : best + 2])
    a, b, _ = np.polyfit(x - x[1], values[best - 1 : best + 2], 2)
    return float(numbers[best] * math.exp(np.clip(-b / (2 * a), x[0] - x[1], x[2] - x[1]))) if a < 0 else numbers[best]


def _count_by_head(part: CountProblem, over: SemiSupervisedKMeans, seed: int) -> float:
    """How many of too many clusters a trained read-out uses."""
    numbers = np.where(part.labels >= 0, np.searchsorted(over.classes_, part.labels), -1)
    starts = torch.from_numpy(over.cluster_centers_[None])
    head = train_heads(part.features, numbers, starts, prior=None, seed=seed, steps=_HEAD_STEPS)
    sizes = np.bincount(head.clusters, minlength=over.n_clusters) / len(head.clusters)
    used = sizes[sizes > 0]
    return max(float(part.n_known), float(np.exp(-(used * np.log(used)).sum())))


def _count_by_merging(part: CountProblem, over: SemiSupervisedKMeans, seed: int) -> float:
    """How many of too many clusters are left after indistinguishable ones are merged."""
    connections = measure_connections(part.features, over.labels_, over.n_clusters, part.n_known, seed=seed)
    merges = merge_indistinguishable(connections, least=part.n_known, into_known=True)
    return float((np.bincount(over.labels_, minlength=over.n_clusters) > 0).sum() - len(merges))


def _calibrate(name: str, value: float, errors: list[float], bounds: tuple[int, int]) -> Calibrated:
    """Bias and spread of the errors.

    The bias was learned on fewer classes, so half of it is added to the spread, and half a class. Errors concern the
    new classes: the spread grows with their share, which is a fifth in the rounds.
    """
    bias, rounds = shrunk_mean(np.array(errors)), len(errors)
    spread = math.hypot(np.std(errors, ddof=1) * math.sqrt(1 + 1 / rounds), bias / 2, 0.5 / bounds[0])
    n_classes = value * math.exp(-bias)
    more = max(1.0, (1 - bounds[0] / n_classes) * ROUNDS)
    reach = spread * more * student.ppf((1 + COVERAGE) / 2, rounds - 1)
    numbers = (n_classes * math.exp(x) for x in (0, -reach, reach))
    return _within(Calibrated(name, value, tuple(errors), *numbers), bounds)


def _calibrate_share(
    found: Estimates, errors: list[float], spreads: list[float], bounds: tuple[int, int]
) -> Calibrated:
    """The interval of the bootstrap, widened if the errors on hidden classes are larger than it says, and because a
    few classes say little about others."""
    value, bias = found.numbers[SHARE], shrunk_mean(np.array(errors))
    variance, tails = max(np.mean(np.square(spreads)), _LEAST_VARIANCE), (1 - COVERAGE) / 2
    by_errors = math.sqrt(max(1.0, float(np.mean(np.square(errors)) / variance)))
    by_few_classes = student.ppf(1 - tails, found.share.n_known - 1) / student.ppf(1 - tails, 10**6)
    low, high = (np.log(np.quantile(found.draws, q) / value) * by_errors * by_few_classes for q in (tails, 1 - tails))
    numbers = (value * math.exp(x - bias) for x in (0, min(low, 0.0), max(high, 0.0)))
    return _within(Calibrated(SHARE, value, tuple(errors), *numbers), bounds)


def shrunk_mean(values: np.ndarray) -> float:
    """The mean, shrunk by the part of its square that is noise (positive-part James-Stein)."""
    mean, noise = float(values.mean()), float(values.var(ddof=1)) / len(values)
    return mean * max(0.0, 1 - noise / mean**2) if mean else 0.0


def _within(found: Calibrated, bounds: tuple[int, int]) -> Calibrated:
    n_classes, low, high = (float(np.clip(x, *bounds)) for x in (found.n_classes, found.low, found.high))
    return found._replace(n_classes=n_classes, low=low, high=high)
