"""Images divided into clusters, known classes first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.heads import LinearHead
from promptcal.discovery.kmeans import cluster_sums
from promptcal.metrics.accuracy import match_clusters

BLOCK = 2048  # images whose scores for all clusters are in memory at a time


@dataclass(frozen=True)
class Partition:
    """The cluster of each image and the mean embedding of each cluster.

    ``columns`` maps each cluster to the number it had before clusters were reordered, which for a classifier is the
    output that stands for it. ``head`` is the classifier of the trained read-out, and ``stability`` the share of its
    starts that agree on each image.
    """

    clusters: np.ndarray
    centroids: Tensor
    columns: Tensor
    head: LinearHead | None = None
    stability: np.ndarray | None = None

    @classmethod
    def of(cls, clusters: np.ndarray, centroids: Tensor) -> "Partition":
        return cls(clusters, centroids, torch.arange(len(centroids)))

    @classmethod
    def from_members(cls, features: Tensor, clusters: Tensor, n_clusters: int) -> "Partition":
        """Centroids are the means of the members; an empty cluster has its centroid at 0."""
        sums, sizes = cluster_sums(features, clusters.to(features.device), n_clusters)
        return cls.of(clusters.cpu().numpy(), (sums / sizes.clamp(min=1).unsqueeze(1)).cpu())

    def reordered(self, order: np.ndarray) -> "Partition":
        """The same with cluster ``order[i]`` as number i."""
        renumbered = np.empty_like(order)
        renumbered[order] = np.arange(len(order))
        index = torch.from_numpy(order)
        head = None if self.head is None else self.head.reordered(index)
        return Partition(renumbered[self.clusters], self.centroids[index], self.columns[index], head, self.stability)

    def tensors(self) -> dict[str, Tensor]:
        """What is stored to assign new images."""
        head = {} if self.head is None else {"head_weight": self.head.weight, "head_bias": self.head.bias}
        return {"centroids": self.centroids, "columns": self.columns, **head}

    def new_by_size(self, n_known: int) -> "Partition":
        """The new clusters renumbered from largest to smallest."""
        sizes = np.bincount(self.clusters, minlength=len(self.centroids))
        new = n_known + np.argsort(-sizes[n_known:], kind="stable")
        return self.reordered(np.concatenate([np.arange(n_known), new]))

    def named_by(self, labels: np.ndarray) -> "Partition":
        """Each known class becomes the number of one cluster, so that most labelled images lie in their class."""
        labelled = labels >= 0
        match = match_clusters(labels[labelled], self.clusters[labelled])
        cluster_of = {int(label): int(cluster) for cluster, label in match.items()}
        free = (c for c in range(len(self.centroids)) if c not in match)
        known = [cluster_of[c] if c in cluster_of else next(free) for c in range(int(labels.max(initial=-1)) + 1)]
        return self.reordered(np.array([*known, *(c for c in range(len(self.centroids)) if c not in known)]))

    def keeping(self, labels: np.ndarray) -> "Partition":
        """The partition with every labelled image in the cluster of its class."""
        return replace(self, clusters=np.where(labels >= 0, labels, self.clusters))


def centroid_cosines(features: Tensor, centroids: Tensor) -> Tensor:
    """Cosine of each image with each centroid (images x clusters)."""
    return features @ torch.nn.functional.normalize(centroids.to(features.device), dim=1).T


def nearest_centroids(features: Tensor, centroids: Tensor) -> Tensor:
    """The cluster whose centroid is nearest to each embedding."""
    centroids = centroids.to(features.device)
    return (features @ centroids.T - centroids.square().sum(dim=1) / 2).argmax(dim=1)


def largest_at(probabilities: Tensor, clusters: Tensor) -> Tensor:
    """The probabilities with the largest one of each row at its cluster, exchanged with the one that was there.

    The nearest centroid need not be the one with the largest cosine, because centroids differ in length.
    """
    rows = torch.arange(len(probabilities), device=probabilities.device)
    largest, position = probabilities.max(dim=1)
    result = probabilities.clone()
    result[rows, position] = probabilities[rows, clusters]
    result[rows, clusters] = largest
    return result


class RankedClusters(NamedTuple):
    """The cluster of each image with its probability, and the most likely other cluster (-1 if none) with its own."""

    clusters: np.ndarray
    confidence: np.ndarray
    second: np.ndarray
    second_confidence: np.ndarray


def rank_clusters(probabilities: Tensor, clusters: Tensor) -> RankedClusters:
    """Confidence in the given ``clusters``, and the most likely alternative to each."""
    clusters = clusters.to(probabilities.device).unsqueeze(1)
    confidence = probabilities.gather(1, clusters)
    others = probabilities.scatter(1, clusters, -1.0)
    second_confidence, second = others.max(dim=1)
    alone = second_confidence < 0
    second, second_confidence = second.masked_fill(alone, -1), second_confidence.masked_fill(alone, 0.0)
    found = (clusters.squeeze(1), confidence.squeeze(1), second, second_confidence)
    return RankedClusters(*(column.cpu().numpy() for column in found))


def rank_scores(scores: Tensor, clusters: Tensor, temperature: float) -> RankedClusters:
    """`rank_clusters` of the softmax of ``scores`` / ``temperature``; the scores are overwritten.

    Half as many passes over the scores, which for many clusters take longer than computing them.
    """
    clusters = clusters.to(scores.device).unsqueeze(1)
    largest = scores.amax(dim=1, keepdim=True)
    shares = (scores - largest).mul_(1 / temperature).exp_()
    total = shares.sum(dim=1, keepdim=True)
    confidence = shares.gather(1, clusters).div_(total)
    second_score, second = scores.scatter_(1, clusters, -torch.inf).max(dim=1)
    second_confidence = ((second_score.unsqueeze(1) - largest) / temperature).exp_().div_(total).squeeze(1)
    second = second.masked_fill(torch.isneginf(second_score), -1)
    found = (clusters.squeeze(1), confidence.squeeze(1), second, second_confidence)
    return RankedClusters(*(column.cpu().numpy() for column in found))


def rank_in_blocks(features: Tensor, clusters: Tensor, probabilities: Callable[[Tensor], Tensor]) -> RankedClusters:
    """`rank_clusters` by the probabilities of embeddings, block by block."""
    blocks = zip(features.split(BLOCK), clusters.split(BLOCK), strict=True)
    parts = [rank_clusters(probabilities(block), of_block) for block, of_block in blocks]
    return join_ranked(parts)


def join_ranked(parts: Sequence[RankedClusters]) -> RankedClusters:
    return RankedClusters(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
