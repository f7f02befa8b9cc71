"""How a method turns embeddings into clusters: by k-means, or by the network's own classifier."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.partition import Partition, centroid_cosines, nearest_centroids
from promptcal.models import ClassifierNetwork

KMeansFit = Callable[[Tensor, "np.ndarray | None"], SemiSupervisedKMeans]


class Assignment(ABC):
    """Assigns L2-normalised embeddings to clusters, known classes first.

    ``score_kind`` names what `scores` returns: "cosines" with the centroids, or a classifier's "outputs".
    ``uses_kmeans``: whether another seed of k-means can give other clusters.
    ``labels_in_centroids``: whether labelled images are put into the cluster of their class before its centroid is
    computed. ``temperature`` turns scores into probabilities before anything is calibrated.
    """

    score_kind: ClassVar[Literal["cosines", "outputs"]]
    uses_kmeans: ClassVar[bool] = True
    labels_in_centroids: bool
    temperature: float

    @abstractmethod
    def partition(self, features: Tensor, labels: np.ndarray, kmeans: KMeansFit) -> Partition:
        """Every image in a cluster; labels are -1 for unlabelled images. ``kmeans`` clusters as the config says."""

    @abstractmethod
    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        """The clusters of validation images (with labels, known classes have their own numbers) or test images."""

    def outputs(self, features: Tensor, columns: Tensor) -> Tensor | None:
        """A classifier's outputs (images x clusters), column ``columns[i]`` for cluster i; None without one."""
        return None

    def scores(self, features: Tensor, centroids: Tensor, columns: Tensor) -> Tensor:
        """Scores (images x clusters): the outputs, or cosines with the centroids."""
        outputs = self.outputs(features, columns)
        return centroid_cosines(features, centroids) if outputs is None else outputs

    @abstractmethod
    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        """The cluster of each image."""


class KMeansAssignment(Assignment):
    """Semi-supervised k-means on the embeddings; ``use_labels=False`` is plain k-means, named by labels afterwards."""

    score_kind = "cosines"

    def __init__(self, temperature: float, *, use_labels: bool = True) -> None:
        self.temperature = temperature
        self.labels_in_centroids = use_labels

    def partition(self, features: Tensor, labels: np.ndarray, kmeans: KMeansFit) -> Partition:
        fitted = kmeans(features, labels if self.labels_in_centroids else None)
        found = Partition.of(fitted.labels_, torch.from_numpy(fitted.cluster_centers_))
        return (found if self.labels_in_centroids else found.named_by(labels)).keeping(labels)

    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        return kmeans(features, labels).labels_

    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        return nearest_centroids(features, centroids)


class ClassifierAssignment(Assignment):
    """The category whose output is largest."""

    score_kind, temperature, labels_in_centroids = "outputs", 1.0, False
    uses_kmeans = False

    def __init__(self, network: ClassifierNetwork) -> None:
        self.network = network

    def partition(self, features: Tensor, labels: np.ndarray, kmeans: KMeansFit) -> Partition:
        return self._by_output(features).keeping(labels)

    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        return self._by_output(features).clusters

    @torch.no_grad()
    def _by_output(self, features: Tensor) -> Partition:
        outputs = self.network.classify(features)
        return Partition.from_members(features, outputs.argmax(dim=1), outputs.shape[1])

    @torch.no_grad()
    def outputs(self, features: Tensor, columns: Tensor) -> Tensor | None:
        return self.network.classify(features).index_select(1, columns.to(features.device))

    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        return scores.argmax(dim=1)
