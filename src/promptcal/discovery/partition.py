"""Images divided into clusters, known classes first: by k-means, or by a network's own classifier."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.metrics.accuracy import match_clusters
from promptcal.models import ClassifierNetwork


@dataclass(frozen=True)
class Partition:
    """The cluster of each image and the mean embedding of each cluster.

    ``columns`` is for classifiers: which of their outputs stands for which cluster.
    """

    clusters: np.ndarray
    centres: Tensor
    columns: Tensor | None = None

    @classmethod
    def by_classifier(cls, features: Tensor, network: ClassifierNetwork) -> "Partition":
        """Each image where the classifier's output is largest; a cluster nothing falls to has its centre at 0."""
        logits = network.classify(features)
        clusters = logits.argmax(dim=1)
        members = torch.nn.functional.one_hot(clusters, logits.shape[1]).to(features)
        centres = members.T @ features / members.sum(dim=0).clamp(min=1).unsqueeze(1)
        return cls(clusters.cpu().numpy(), centres.cpu(), torch.arange(logits.shape[1]))

    def reordered(self, order: np.ndarray) -> "Partition":
        """The same with cluster ``order[i]`` as number i."""
        renumbered = np.empty_like(order)
        renumbered[order] = np.arange(len(order))
        columns = None if self.columns is None else self.columns[torch.from_numpy(order)]
        return Partition(renumbered[self.clusters], self.centres[torch.from_numpy(order)], columns)

    def new_by_size(self, n_known: int) -> "Partition":
        """The new clusters renumbered from largest to smallest."""
        sizes = np.bincount(self.clusters, minlength=len(self.centres))
        return self.reordered(
            np.concatenate([np.arange(n_known), n_known + np.argsort(-sizes[n_known:], kind="stable")])
        )

    def named_by(self, labels: np.ndarray) -> "Partition":
        """Known classes given to the clusters their labelled images lie in, one to one, as well as can be."""
        labelled = labels >= 0
        match = match_clusters(labels[labelled], self.clusters[labelled])
        cluster_of = {int(label): int(cluster) for cluster, label in match.items()}
        free = (c for c in range(len(self.centres)) if c not in match)
        known = [cluster_of[c] if c in cluster_of else next(free) for c in range(int(labels.max(initial=-1)) + 1)]
        return self.reordered(np.array([*known, *(c for c in range(len(self.centres)) if c not in known)]))

    def keeping(self, labels: np.ndarray) -> "Partition":
        """With every labelled image in the cluster of its class."""
        return replace(self, clusters=np.where(labels >= 0, labels, self.clusters))


def centre_cosines(features: Tensor, centres: Tensor) -> Tensor:
    """Of each image with each centre (images x clusters)."""
    return features @ torch.nn.functional.normalize(centres.to(features.device), dim=1).T


def centroid_probabilities(features: Tensor, centres: Tensor, temperature: float) -> Tensor:
    """Softmax over cosines with the centres (images x clusters)."""
    return torch.softmax(centre_cosines(features, centres) / temperature, dim=1)


@torch.no_grad()
def classifier_logits(features: Tensor, network: ClassifierNetwork, columns: Tensor) -> Tensor:
    """The classifier's outputs (images x clusters)."""
    return network.classify(features)[:, columns.to(features.device)]


def classifier_probabilities(
    features: Tensor, network: ClassifierNetwork, columns: Tensor, temperature: float = 1.0
) -> Tensor:
    """Softmax of the classifier's outputs (images x clusters)."""
    return torch.softmax(classifier_logits(features, network, columns) / temperature, dim=1)


def nearest_centres(features: Tensor, centres: Tensor) -> Tensor:
    """The cluster whose centre is nearest to each embedding."""
    centres = centres.to(features.device)
    return (features @ centres.T - centres.square().sum(dim=1) / 2).argmax(dim=1)


class Choices(NamedTuple):
    """The cluster of each image with its share, and the likeliest other cluster (-1 without one) with its own."""

    clusters: np.ndarray
    confidence: np.ndarray
    second: np.ndarray
    second_confidence: np.ndarray


def choices(shares: Tensor, clusters: Tensor) -> Choices:
    clusters = clusters.to(shares.device).unsqueeze(1)
    confidence = shares.gather(1, clusters)
    others = shares.scatter(1, clusters, -1.0)
    second_confidence, second = others.max(dim=1)
    alone = second_confidence < 0
    found = (
        clusters.squeeze(1),
        confidence.squeeze(1),
        second.masked_fill(alone, -1),
        second_confidence.masked_fill(alone, 0.0),
    )
    return Choices(*(column.cpu().numpy() for column in found))
