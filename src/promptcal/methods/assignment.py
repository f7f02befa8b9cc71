"""How a method turns embeddings into clusters: k-means, a trained read-out, or the network's own classifier."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.heads import LinearHead, TrainedHeads, continued_head
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.partition import Partition, centroid_cosines
from promptcal.models import ClassifierNetwork

KMeansFit = Callable[[Tensor, "np.ndarray | None"], SemiSupervisedKMeans]
HeadsFit = Callable[[Tensor, np.ndarray], TrainedHeads]


@dataclass(frozen=True)
class Clustering:
    """Clustering as the config says: k-means, and heads that are trained from starts of k-means."""

    kmeans: KMeansFit
    heads: HeadsFit


class FittedClusters(Protocol):
    """What assigns new images: a `Partition`, or the files of a run."""

    @property
    def centroids(self) -> Tensor: ...

    @property
    def columns(self) -> Tensor: ...

    @property
    def head(self) -> LinearHead | None: ...


class Assignment(ABC):
    """Assigns L2-normalised embeddings to clusters, known classes first.

    ``score_kind`` names what `scores` returns: "cosines" with the centroids, or a classifier's "outputs".
    ``uses_kmeans``: whether another seed of k-means can give other clusters.
    ``labels_in_centroids``: whether labelled images are put into the cluster of their class before its centroid is
    computed. ``trains_readout``: whether labels are used to train the outputs after the network was trained.
    ``temperature`` turns scores into probabilities before anything is calibrated.
    """

    score_kind: ClassVar[Literal["cosines", "outputs"]]
    uses_kmeans: ClassVar[bool] = True
    trains_readout: ClassVar[bool] = False
    labels_in_centroids: bool
    temperature: float

    @abstractmethod
    def partition(self, features: Tensor, labels: np.ndarray, clustering: Clustering) -> Partition:
        """Every image in a cluster; labels are -1 for unlabelled images."""

    @abstractmethod
    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        """The clusters of validation images (with labels, known classes have their own numbers) or test images."""

    def outputs(self, features: Tensor, fitted: FittedClusters) -> Tensor | None:
        """A classifier's outputs (images x clusters); None without one."""
        return None

    def outputs_by_labels(
        self, features: Tensor, partition: Partition, labels: np.ndarray
    ) -> Callable[[Tensor], Tensor] | None:
        """A classifier's outputs for embeddings, if a read-out had only these ``labels``: the others calibrate it."""
        return None

    def scores(self, features: Tensor, fitted: FittedClusters) -> Tensor:
        """Scores (images x clusters): the outputs, or cosines with the centroids."""
        outputs = self.outputs(features, fitted)
        return centroid_cosines(features, fitted.centroids) if outputs is None else outputs

    def from_clusters(self, features: Tensor, clusters: np.ndarray, n_clusters: int) -> Partition:
        """These clusters, which may be merged ones, as those of k-means or of a trained read-out."""
        return Partition.from_members(features, torch.from_numpy(clusters), n_clusters)

    @abstractmethod
    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        """The cluster of each image."""


class KMeansAssignment(Assignment):
    """Semi-supervised k-means on the embeddings; ``use_labels=False`` is plain k-means, named by labels afterwards."""

    score_kind = "cosines"

    def __init__(self, temperature: float, *, use_labels: bool = True) -> None:
        self.temperature = temperature
        self.labels_in_centroids = use_labels

    def partition(self, features: Tensor, labels: np.ndarray, clustering: Clustering) -> Partition:
        fitted = clustering.kmeans(features, labels if self.labels_in_centroids else None)
        found = Partition.of(fitted.labels_, torch.from_numpy(fitted.cluster_centers_))
        return (found if self.labels_in_centroids else found.named_by(labels)).keeping(labels)

    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        return kmeans(features, labels).labels_

    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        """The nearest centroid by the cosines, which need no other product with all centroids."""
        lengths = torch.linalg.vector_norm(centroids.to(scores.device), dim=1)
        return torch.addcmul(-lengths.square() / 2, scores, lengths).argmax(dim=1)


class HeadAssignment(Assignment):
    """A linear classifier that is trained on the embeddings from starts of semi-supervised k-means.

    During training and for test images without labels, k-means alone is used.
    """

    score_kind, temperature, labels_in_centroids = "outputs", 1.0, True
    trains_readout = True

    def partition(self, features: Tensor, labels: np.ndarray, clustering: Clustering) -> Partition:
        found = clustering.heads(features, labels)
        members = torch.from_numpy(np.where(labels >= 0, labels, found.clusters)).to(features.device)
        partition = Partition.from_members(features, members, len(found.head.bias))
        return replace(partition, head=found.head, stability=found.stability)

    def from_clusters(self, features: Tensor, clusters: np.ndarray, n_clusters: int) -> Partition:
        partition = super().from_clusters(features, clusters, n_clusters)
        return replace(partition, head=continued_head(features, clusters, clusters, partition.centroids))

    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        return kmeans(features, labels).labels_

    def outputs(self, features: Tensor, fitted: FittedClusters) -> Tensor | None:
        assert fitted.head is not None
        return fitted.head.outputs(features)

    def outputs_by_labels(
        self, features: Tensor, partition: Partition, labels: np.ndarray
    ) -> Callable[[Tensor], Tensor]:
        return continued_head(features, labels, partition.clusters, partition.centroids).outputs

    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        return scores.argmax(dim=1)


class ClassifierAssignment(Assignment):
    """The category whose output is largest."""

    score_kind, temperature, labels_in_centroids = "outputs", 1.0, False
    uses_kmeans = False

    def __init__(self, network: ClassifierNetwork) -> None:
        self.network = network

    def partition(self, features: Tensor, labels: np.ndarray, clustering: Clustering) -> Partition:
        return self._by_output(features).keeping(labels)

    def clusters(self, features: Tensor, labels: np.ndarray | None, kmeans: KMeansFit) -> np.ndarray:
        return self._by_output(features).clusters

    @torch.no_grad()
    def _by_output(self, features: Tensor) -> Partition:
        outputs = self.network.classify(features)
        return Partition.from_members(features, outputs.argmax(dim=1), outputs.shape[1])

    @torch.no_grad()
    def outputs(self, features: Tensor, fitted: FittedClusters) -> Tensor | None:
        return self.network.classify(features).index_select(1, fitted.columns.to(features.device))

    def outputs_by_labels(
        self, features: Tensor, partition: Partition, labels: np.ndarray
    ) -> Callable[[Tensor], Tensor]:
        """Its outputs, which depend on no label any more."""

        @torch.no_grad()
        def outputs(chosen: Tensor) -> Tensor:
            return self.network.classify(chosen).index_select(1, partition.columns.to(chosen.device))

        return outputs

    def choose(self, features: Tensor, scores: Tensor, centroids: Tensor) -> Tensor:
        return scores.argmax(dim=1)
