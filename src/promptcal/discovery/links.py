"""Which clusters cannot be told apart, and which fall into two: links between nearest neighbours.

Every image has links to its nearest neighbours. With E_ab links from the n_a images of cluster a to the n_b images of
cluster b, the connection of two clusters is the density of links between them against that within:

    r_ab = ((E_ab + E_ba) / (2 n_a n_b)) / sqrt(w_a w_b),   w_a = E_aa / (n_a (n_a - 1))

It is 0 without links and near 1 if a cluster was divided at random. The classes with labels say what a connection
means: how strongly two different classes are connected, and the two halves (2-means) of one class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.heads import find_neighbours
from promptcal.discovery.kmeans import SemiSupervisedKMeans, cluster_sums
from promptcal.metrics import contingency_table

NEIGHBOURS = 10
MOST_IMAGES = 20_000  # neighbours take time and memory by the square
_MOST_IN_HALVES = 500  # images of a cluster that is divided
_LEAST_IN_HALVES = 8
_WEAK_HALVES = 0.25  # the quantile of the connections of halves that two clusters must reach
FALSE_RATE = 0.05  # of the classes with labels, where there are enough of them to measure it


class Links(NamedTuple):
    """Numbers of links from cluster to cluster (clusters x clusters), and of images in each cluster."""

    counts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, neighbours: np.ndarray, clusters: np.ndarray, n_clusters: int) -> "Links":
        """From the neighbours of each image (images x k)."""
        origins = np.repeat(clusters, neighbours.shape[1])
        counts = contingency_table(origins, clusters[neighbours].ravel(), n_clusters, n_clusters)
        return cls(counts.astype(np.float64), np.bincount(clusters, minlength=n_clusters).astype(np.float64))

    def connections(self) -> np.ndarray:
        """r_ab of each pair; 0 on the diagonal and for clusters without links within."""
        n = self.sizes
        within = np.diag(self.counts) / np.maximum(n * (n - 1), 1)
        between = (self.counts + self.counts.T) / (2 * np.maximum(np.outer(n, n), 1))
        scale = np.sqrt(np.outer(within, within))
        ratios = np.where(scale > 0, between / np.where(scale > 0, scale, 1), 0.0)
        np.fill_diagonal(ratios, 0.0)
        return ratios

    def merged(self, kept: int, other: int) -> "Links":
        """The links with ``other`` added to ``kept``; ``other`` stays as an empty cluster."""
        counts, sizes = self.counts.copy(), self.sizes.copy()
        counts[kept] += counts[other]
        counts[:, kept] += counts[:, other]
        counts[other], counts[:, other] = 0, 0
        sizes[kept] += sizes[other]
        sizes[other] = 0
        return Links(counts, sizes)


class ClassConnections(NamedTuple):
    """Of each class with labels: its largest connection with another one, and that of its two halves (NaN: too few
    images)."""

    between: np.ndarray
    halves: np.ndarray

    def merge_threshold(self) -> float:
        """Clusters above it are connected like the halves of a class and unlike two classes; infinite if unknown.

        At most `FALSE_RATE` of the classes have a larger connection with another class, or none if there are fewer than
        20, and a quarter of the classes have halves with a smaller one.
        """
        return max(self._thresholds())

    def suggestion_threshold(self) -> float:
        """Clusters above it are connected like the halves of a class, or unlike two classes; infinite if unknown."""
        return min(self._thresholds())

    def _thresholds(self) -> tuple[float, float]:
        halves = self.halves[np.isfinite(self.halves)]
        if len(self.between) < 2 or not len(halves):
            return float("inf"), float("inf")
        allowed = int(FALSE_RATE * len(self.between))
        return float(np.sort(self.between)[::-1][allowed]), float(np.quantile(halves, _WEAK_HALVES))

    def split_threshold(self) -> float:
        """A cluster whose halves are connected less falls into two, as at most `FALSE_RATE` of the classes do."""
        halves = np.sort(self.halves[np.isfinite(self.halves)])
        return float(halves[int(FALSE_RATE * len(halves))]) if len(halves) >= 2 else 0.0

    def false_merge_rate(self, connection: float) -> float:
        """The share of the classes that have such a connection with another class, with one more on the safe side."""
        return float((1 + (self.between >= connection).sum()) / (1 + len(self.between)))


@dataclass(frozen=True)
class Connections:
    """The links of a clustering, the connection of each cluster's halves, and those of the classes with labels.

    Clusters 0 to ``n_known`` - 1 are the classes.
    """

    links: Links
    halves: np.ndarray
    n_known: int

    @property
    def classes(self) -> ClassConnections:
        between = self.links.connections()[: self.n_known, : self.n_known]
        return ClassConnections(between.max(axis=1, initial=0.0), self.halves[: self.n_known])


class Neighbourhoods(NamedTuple):
    """Images (all, or a random part of `MOST_IMAGES`) with the nearest neighbours of each among them. They can be used
    again when the clusters change."""

    images: np.ndarray
    neighbours: np.ndarray

    @classmethod
    def of(cls, features: Tensor, clusters: np.ndarray, n_clusters: int, seed: int = 0) -> "Neighbourhoods":
        """Find them in L2-normalised embeddings. On a CPU, only the nearest of the ``clusters`` are searched."""
        images = np.sort(np.random.default_rng(seed).permutation(len(features))[:MOST_IMAGES])
        part = features[torch.from_numpy(images).to(features.device)]
        centroids = cluster_sums(part, torch.from_numpy(clusters[images]).to(part.device), n_clusters)[0]
        return cls(images, find_neighbours(part, min(NEIGHBOURS, len(part) - 1), centroids).cpu().numpy())


def measure_connections(
    features: Tensor,
    clusters: np.ndarray,
    n_clusters: int,
    n_known: int,
    *,
    seed: int = 0,
    near: Neighbourhoods | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Connections:
    """Measure them in L2-normalised embeddings, in a random part of more than `MOST_IMAGES`. Progress is by cluster."""
    near = Neighbourhoods.of(features, clusters, n_clusters, seed) if near is None else near
    own, neighbours = clusters[near.images], near.neighbours
    part = features[torch.from_numpy(near.images).to(features.device)].cpu()  # halves are faster on a CPU
    halves = np.full(n_clusters, np.nan)
    for cluster in range(n_clusters):
        halves[cluster] = _connection_of_halves(part, neighbours, np.flatnonzero(own == cluster), seed)
        on_progress(cluster + 1)
    return Connections(Links.of(neighbours, own, n_clusters), halves, n_known)


def _connection_of_halves(features: Tensor, neighbours: np.ndarray, members: np.ndarray, seed: int) -> float:
    """The connection of the two clusters of 2-means on the members; NaN for few members."""
    if len(members) < _LEAST_IN_HALVES:
        return float("nan")
    drawn = members[np.random.default_rng(seed).permutation(len(members))[:_MOST_IN_HALVES]]
    kmeans = SemiSupervisedKMeans(2, n_init=3, max_iter=50, random_state=seed).fit(features[torch.from_numpy(drawn)])
    half = np.full(len(features), 2)
    half[members] = kmeans.predict(features[torch.from_numpy(members)])
    return float(_links_among(neighbours, members, half).connections()[0, 1])


def _links_among(neighbours: np.ndarray, members: np.ndarray, half: np.ndarray) -> Links:
    """The links of ``members`` with each other, by half (0 or 1)."""
    targets = half[neighbours[members]]
    origins = np.repeat(half[members], neighbours.shape[1])
    counts = contingency_table(origins, targets.ravel(), 3, 3)[:2, :2]
    return Links(counts.astype(np.float64), np.bincount(half[members], minlength=2).astype(np.float64))
