"""k-means at any number of classes, scored by the labelled images and by the compactness of the clusters."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.metrics import discovery_accuracy, silhouette

_SILHOUETTE_POINTS = 2000


class Trial(NamedTuple):
    """k-means at one number of classes: accuracy on the labelled images, and quality of the clusters."""

    n_classes: int
    accuracy: float
    silhouette: float
    inertia: float


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
        silhouette_points: int = _SILHOUETTE_POINTS,
        on_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.features = features
        self.labelled = np.flatnonzero(labels >= 0)
        self.labels = labels[self.labelled]
        self.n_init, self.max_iter, self.tol, self.seed = n_init, max_iter, tol, seed
        self.on_trial = on_trial
        order = np.random.default_rng(seed).permutation(len(features))
        self.sample = torch.from_numpy(np.sort(order[:silhouette_points]))
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
