"""Where the categories of a previous run continue in a run with new labels.

A category is confirmed if the user gave it a name: a class of the previous run, or a discovered category that the new
labels name or merge. Its images start in its class. They may move to another class, which has labels of its own, but
not to a category without a name, so that no confirmed category is split. Categories without a name start where they
were. If nothing is trained, the embeddings are those of the previous run, and only new labels are evidence: then an
unlabelled image moves only to a class that has a new label, is supported by its labels (`supported_classes`), and has
one of the labelled images that are nearest to it. If the class had unlabelled images before, it must also have more of
the nearest images than the previous category of the image: many labels of one class and few of another say little.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.calibration import left_out_cosines
from promptcal.discovery.partition import BLOCK, Partition
from promptcal.errors import ConfigError
from promptcal.metrics import contingency_table
from promptcal.pipeline.matching import class_origins, match_pairs
from promptcal.run.changes import CategoryLoss

_BLOCK = 4096  # images at a time
_NEAREST = 3  # labelled images, of which one must be of the class that an image moves to
_NEIGHBOURS = 10  # images, more of which must be of that class than of the category that the image is in
_MOST_COMPARED = 50_000  # images that these neighbours are searched among
_MOST_COSINES = 2**25  # at a time
UNNAMED = "categories without a name"
REPORTED_SHARE = 0.05  # a confirmed category that loses more of its images than this is reported


@dataclass(frozen=True)
class CategoryTargets:
    """The cluster that each previous category continues as (-1: none), and whether the category is confirmed.

    The clusters are the classes, then the categories without a name. ``n_clusters`` counts both.
    """

    clusters: np.ndarray
    confirmed: np.ndarray
    n_clusters: int


def category_targets(
    previous_names: Sequence[str],
    classes: Sequence[str],
    shared: np.ndarray,
    sizes: np.ndarray,
    similarity: np.ndarray,
    n_clusters: int,
) -> CategoryTargets:
    """How the previous categories continue.

    ``shared`` counts labelled images by class and previous category, ``sizes`` the images of each category, and
    ``similarity`` is the cosine of each class's labelled images with each category (both means).

    A category continues as the class with its name, or as the class that has most of its labelled images in it. A
    category more than half of whose images are now labelled is merged into the class that most of them have. A class
    that is still without a category takes the place of one without a name: the total number of categories stays. Of
    the categories without a name, the largest continue if there are fewer than before.
    """
    targets = np.full(len(previous_names), -1)
    for number, category in class_origins(previous_names, classes, shared).items():
        targets[category] = number
    for category in np.flatnonzero((targets < 0) & (2 * shared.sum(axis=0) > sizes)).tolist():
        targets[category] = int(shared[:, category].argmax())
    confirmed = targets >= 0
    n_free = int((~confirmed).sum()) - max(n_clusters - len(classes), 0)
    unplaced = np.setdiff1d(np.arange(len(classes)), targets)
    if n_free > 0 and len(unplaced):
        unnamed = np.flatnonzero(~confirmed)
        weights = shared[np.ix_(unplaced, unnamed)] * 10.0 + 2 + similarity[np.ix_(unplaced, unnamed)]
        for row, column in match_pairs(weights)[:n_free]:
            targets[unnamed[column]] = unplaced[row]
    unnamed = np.flatnonzero(targets < 0)
    largest = unnamed[np.argsort(-sizes[unnamed], kind="stable")][: max(n_clusters - len(classes), 0)]
    for number, category in enumerate(sorted(largest.tolist()), start=len(classes)):
        targets[category] = number
    return CategoryTargets(targets, confirmed, len(classes) + len(largest))


@dataclass(frozen=True)
class Continuation:
    """Where each image starts: the cluster by image (-1: nowhere), of ``n_started`` clusters, the classes first.

    ``confirmed`` are the unlabelled images of confirmed categories. With ``keep`` they stay in them; otherwise they may
    move to another class. If there are more categories than before, any may be split: then no image is ``confirmed``.
    ``counted`` are the images of confirmed categories in any case; `losses` counts those that leave. ``unchanged`` are
    clusters that no image of another one moves to; ``closed`` are those that have labelled images only, and
    ``without_images`` those in which no unlabelled image starts. ``nearest`` are the classes of the labelled images
    that are nearest to each image, None if the network was trained.
    """

    start: np.ndarray
    confirmed: np.ndarray
    counted: np.ndarray
    n_classes: int
    n_started: int
    keep: bool
    unchanged: np.ndarray
    closed: np.ndarray
    without_images: np.ndarray
    nearest: np.ndarray | None

    @classmethod
    def of(
        cls,
        before: np.ndarray,
        labels: np.ndarray,
        released: np.ndarray,
        targets: CategoryTargets,
        n_classes: int,
        *,
        keep: bool,
        supported: np.ndarray,
        changed: np.ndarray | None = None,
        nearest: np.ndarray | None = None,
    ) -> "Continuation":
        """``before`` is the previous category of each image (-1: none), ``released`` marks images that the user marked
        as wrong, which may move anywhere. ``supported`` and ``changed`` classes (masks) are supported by their labels
        and have new ones. ``changed`` and ``nearest`` are None if the network was trained."""
        start = np.where((before >= 0) & ~released, targets.clusters[before], -1)
        start = np.where(labels >= 0, labels, start)
        confirmed = (before >= 0) & targets.confirmed[before] & (labels < 0) & ~released
        counted = confirmed
        n_added = n_classes - targets.n_clusters
        if n_added > 0 and not keep:  # the user asks for more categories than there were, so any may be split
            confirmed = np.zeros_like(confirmed)
        elif n_added > int(((labels < 0) & ~confirmed).sum()):
            raise ConfigError(
                f"--keep-confirmed leaves too few images for {n_added} more categories; leave it out, or lower "
                "--n-classes"
            )
        unchanged, closed = np.zeros((2, n_classes), dtype=bool)
        if changed is not None:
            unchanged[: targets.n_clusters] = True
            unchanged[: len(changed)] = ~(changed & supported)
        is_empty = np.bincount(start[(start >= 0) & (labels < 0)], minlength=n_classes) == 0
        closed[: len(supported)] = is_empty[: len(supported)] & ~supported
        return cls(start, confirmed, counted, n_classes, targets.n_clusters, keep, unchanged, closed, is_empty, nearest)

    def fixed(self, labels: np.ndarray) -> np.ndarray:
        """The cluster of each image that must not move (-1 elsewhere)."""
        return np.where(self.confirmed, self.start, labels) if self.keep else labels

    def starts(self, features: Tensor, labels: np.ndarray) -> list[Tensor]:
        """Two sets of initial centroids: the previous members, and the labelled images of each class only."""
        n_known = int(labels.max(initial=-1)) + 1
        members = cluster_means(features, self.start, self.n_started)
        by_label = cluster_means(features, np.where(self.start < n_known, labels, self.start), self.n_started)
        return [members, by_label]

    def holding(self, partition: Partition, n_known: int, features: Tensor) -> Partition:
        """With images in their category again that may not leave it for the one they are now in."""
        clusters = partition.clusters
        left = self.confirmed & (self.keep | (clusters >= n_known))
        left |= (self.start >= 0) & self.unchanged[clusters]
        if self.nearest is not None:
            left |= (self.start >= 0) & (clusters < n_known) & ~(self.nearest == clusters[:, None]).any(axis=1)
            moved = (self.start >= 0) & (clusters != self.start) & ~self.without_images[clusters] & ~left
            left[moved] = ~have_more_neighbours(features, self.start, np.flatnonzero(moved), clusters[moved])
        return replace(partition, clusters=np.where(left, self.start, clusters))

    def losses(self, clusters: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> list[CategoryLoss]:
        """The confirmed categories that lose more than a few percent of their images to other classes, or to categories
        without a name, which are counted together."""
        members, n_known = np.where(self.counted | (labels >= 0), self.start, -1), len(classes)
        moved = contingency_table(members, np.minimum(clusters, n_known), n_known, n_known + 1)
        names = [*classes, UNNAMED]
        found = []
        for number, row in enumerate(moved):
            lost = int(row.sum() - row[number])
            if lost > REPORTED_SHARE * row.sum():
                into = {names[c]: int(row[c]) for c in np.argsort(-row, kind="stable") if row[c] and c != number}
                found.append(
                    CategoryLoss(name=classes[number], images=int(row.sum()), lost=lost, into=into, kept=self.keep)
                )
        return found


def cluster_means(features: Tensor, clusters: np.ndarray, n_clusters: int) -> Tensor:
    """The mean embedding of each cluster; images with cluster -1 are left out, an empty cluster is at 0."""
    if not n_clusters:
        return features.new_zeros(0, features.shape[1])
    return Partition.from_members(features, torch.from_numpy(clusters), n_clusters).centroids.to(features)


def inertia(features: Tensor, partition: Partition) -> float:
    """The sum of squared distances from the centroids."""
    centroids, clusters = partition.centroids.to(features), torch.from_numpy(partition.clusters).to(features.device)
    blocks = zip(features.split(BLOCK), clusters.split(BLOCK), strict=True)
    return sum(float((block - centroids[own]).square().sum()) for block, own in blocks)


def classified_right(features: Tensor, partition: Partition, labels: np.ndarray) -> np.ndarray:
    """Of each labelled image, whether the nearest centroid is that of its class, with the image left out of its own."""
    members = torch.from_numpy(partition.clusters).to(features.device)
    sizes = members.bincount(minlength=len(partition.centroids))
    labelled = torch.from_numpy(np.flatnonzero(labels >= 0)).to(features.device)
    centroids, numbers = partition.centroids.to(features), torch.from_numpy(labels).to(features.device)
    right = []
    for rows in labelled.split(BLOCK):
        cosines = left_out_cosines(features[rows], members[rows], centroids, sizes)
        right.append((cosines.argmax(dim=1) == numbers[rows]) & (sizes[members[rows]] > 1))
    return torch.cat(right).cpu().numpy()


def supported_classes(features: Tensor, labels: np.ndarray, n_classes: int) -> np.ndarray:
    """Which classes are supported by their labels: at least half of their labelled images are nearest to the mean of
    their class, each left out of its own. The labels of another class may be wrong, or too few to say what it is."""
    if not n_classes:
        return np.zeros(0, dtype=bool)
    labelled = labels >= 0
    chosen, members = features[torch.from_numpy(labelled).to(features.device)], labels[labelled]
    means = Partition.from_members(chosen, torch.from_numpy(members).to(features.device), n_classes)
    right = np.bincount(members[classified_right(chosen, means, members)], minlength=n_classes)
    return 2 * right >= np.bincount(members, minlength=n_classes)


def nearest_labels(features: Tensor, labels: np.ndarray) -> np.ndarray:
    """The labels of the labelled images with the largest cosines with each image (images x at most 3)."""
    labelled = torch.from_numpy(np.flatnonzero(labels >= 0)).to(features.device)
    k = min(_NEAREST, len(labelled))
    found = [(block @ features[labelled].T).topk(k, dim=1).indices for block in features.split(_BLOCK)]
    return labels[labelled[torch.cat(found)].cpu().numpy()]


def have_more_neighbours(features: Tensor, start: np.ndarray, images: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Of each of some ``images``, whether more of its nearest images start in the cluster ``to`` than in its own.

    Of very many images, only evenly spaced ones are compared with.
    """
    others = np.arange(0, len(features), -(-len(features) // _MOST_COMPARED))
    among, clusters = features[torch.from_numpy(others).to(features.device)], start[others]
    found = np.zeros(len(images), dtype=bool)
    block = max(1, _MOST_COSINES // len(others))
    for first in range(0, len(images), block):
        rows = images[first : first + block]
        cosines = features[torch.from_numpy(rows).to(features.device)] @ among.T
        cosines[torch.from_numpy(rows[:, None] == others).to(features.device)] = -torch.inf
        near = clusters[cosines.topk(min(_NEIGHBOURS, len(others) - 1), dim=1).indices.cpu().numpy()]
        counts = [(near == of[:, None]).sum(axis=1) for of in (to[first : first + block], start[rows])]
        found[first : first + block] = counts[0] > counts[1]
    return found


def is_clearly_better(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the first of two paired classifiers is right more often, by two standard errors (McNemar's test)."""
    gained, lost = int((one & ~other).sum()), int((other & ~one).sum())
    return gained - lost > 2 * (gained + lost) ** 0.5
