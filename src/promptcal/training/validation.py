"""Validation between epochs, by which a stage selects one; hidden labels are used only by selection "oracle"."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.config import Config
from promptcal.data import StreamedView, View
from promptcal.errors import TrainingError
from promptcal.metrics import discovery_accuracy, silhouette
from promptcal.models import DiscoveryNetwork
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed

ClusterImages = Callable[[Tensor, "np.ndarray | None"], np.ndarray]  # features, labels (-1 = unlabelled) -> clusters
ScoreEpoch = Callable[[float, float], float]  # accuracy on known classes, silhouette of new ones -> score


class ValidationResult(NamedTuple):
    """Epochs are compared by their ``score``."""

    score: float
    known: float
    silhouette: float

    def logs(self) -> dict[str, float]:
        return {f"validation/{name}": value for name, value in self._asdict().items()}


class Validator:
    """Clusters the validation images and measures known and new classes.

    ``labels`` are the training labels (-1 where unlabelled or held out), ``held_out`` the held-out ones (-1 elsewhere).
    Known classes are measured by the accuracy on held-out labels, new ones by the silhouette of the images predicted
    as new. ``only`` (a mask) restricts what is scored to images that were held out entirely.
    """

    def __init__(
        self,
        view: View | StreamedView,
        labels: np.ndarray,
        held_out: np.ndarray,
        config: Config,
        only: np.ndarray | None = None,
    ) -> None:
        self.view = view
        self.n_known = int(max(labels.max(initial=-1), held_out.max(initial=-1))) + 1
        self.has_new = self.n_known < config.n_classes
        only = np.ones(len(labels), dtype=bool) if only is None else only
        chosen = _choose_images(labels, held_out, only, config)
        self.images = torch.from_numpy(chosen)
        self.labels, self.held_out = labels[chosen], held_out[chosen]
        self.scored = (self.labels < 0) & only[chosen]

    def validate(self, network: DiscoveryNetwork, cluster: ClusterImages, score: ScoreEpoch) -> ValidationResult:
        features = _embed(network, self.view, self.images)
        return network.group.on_first(lambda: self._measure(features, cluster(features, self.labels), score))

    def _measure(self, features: Tensor, clusters: np.ndarray, score: ScoreEpoch) -> ValidationResult:
        known = self._held_out_accuracy(clusters)
        quality = _silhouette(features, clusters, self.scored & (clusters >= self.n_known))
        return ValidationResult(score(known, quality) if self.has_new else known, known, quality)

    def _held_out_accuracy(self, clusters: np.ndarray) -> float:
        """The cluster of a known class has its number, so no matching is needed."""
        scored = self.held_out >= 0
        return float((clusters[scored] == self.held_out[scored]).mean())


class OracleValidator:
    """The rule of the published release (selection "oracle"): it uses the true classes.

    The images are clustered without labels. Known classes are measured by their accuracy under a separate matching, new
    ones by the silhouette of the images whose true class is new. ``truth`` has the true class of each of ``images``.
    """

    def __init__(self, view: View | StreamedView, images: Tensor, truth: list[str], known_classes: list[str]) -> None:
        self.view = view
        self.images = images
        self.truth = truth
        self.known_classes = known_classes
        self.new = ~np.isin(truth, known_classes)

    def validate(self, network: DiscoveryNetwork, cluster: ClusterImages, score: ScoreEpoch) -> ValidationResult:
        features = _embed(network, self.view, self.images)
        return network.group.on_first(lambda: self._measure(features, cluster(features, None), score))

    def _measure(self, features: Tensor, clusters: np.ndarray, score: ScoreEpoch) -> ValidationResult:
        known = discovery_accuracy(self.truth, clusters, self.known_classes).separate_known
        quality = _silhouette(features, clusters, self.new)
        return ValidationResult(score(known, quality) if self.new.any() else known, known, quality)


def _embed(network: DiscoveryNetwork, view: View | StreamedView, images: Tensor) -> Tensor:
    features = embed(network, view, images, group=network.group)
    if not bool(torch.isfinite(features).all()):  # weights can be finite and still too large
        raise TrainingError(
            "the embeddings of the validation images are no longer finite; lower optim.lr and start again with "
            "--overwrite"
        )
    return features


def _choose_images(labels: np.ndarray, held_out: np.ndarray, only: np.ndarray, config: Config) -> np.ndarray:
    """A labelled image of each known class, held-out ones, then others up to a limit; the same ones every time."""
    limit = max(config.selection.max_images, 10 * config.n_classes)
    seed = derive_seed(config.seed, "look")  # the word of version 0.1: another one would choose other images
    order = np.random.default_rng(seed).permutation(len(labels))
    labelled = order[labels[order] >= 0]
    one_of_each = labelled[np.unique(labels[labelled], return_index=True)[1]]
    some_held_out = order[held_out[order] >= 0][: limit // 2]
    by_priority = np.concatenate([one_of_each, some_held_out, order[only[order]], order])
    first_mention = np.sort(np.unique(by_priority, return_index=True)[1])
    return np.sort(by_priority[first_mention][:limit])


def _silhouette(features: Tensor, clusters: np.ndarray, new: np.ndarray) -> float:
    chosen = torch.from_numpy(new)
    quality = silhouette(features[chosen], torch.from_numpy(clusters)[chosen].to(features.device))
    return -1.0 if np.isnan(quality) else quality  # fewer than two clusters predicted as new
