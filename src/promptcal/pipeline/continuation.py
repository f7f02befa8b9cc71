"""Where the categories of a previous run continue in a run with new labels.

1. `category_targets`: each previous category continues as a class, or as a category without a name. A category is
   confirmed if the user gave it a name: a class of the previous run, or a discovered category that the new labels name
   or merge.
2. `Continuation.of`: each image starts where its previous category continues. If nothing is trained, the embeddings are
   those of the previous run, and only new labels are evidence. Then an unlabelled image starts in another class if a
   classifier on the labels clearly places it there (`moved_by_labels`).
3. `Continuation.starts`: the read-out is trained from there.
4. `Continuation.holding`: images go back that may not move where the read-out puts them. Images of confirmed categories
   move only to a class that has labels, so that no confirmed category is split. If nothing is trained, images that
   started in a category move only to categories that did not exist before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.calibration import left_out_cosines
from promptcal.discovery.label_classifier import moved_by_labels
from promptcal.discovery.partition import BLOCK, Partition
from promptcal.errors import ConfigError
from promptcal.metrics import contingency_table
from promptcal.pipeline.matching import class_origins, match_pairs
from promptcal.run.changes import CategoryLoss

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
    """Where each image was and starts: a cluster (-1: none), of ``n_started`` clusters, the classes first.

    ``origin`` is where its category continues, ``start`` the same after the moves by new labels. ``confirmed`` are the
    unlabelled images of confirmed categories. With ``keep`` they stay in them; otherwise they may move to another
    class. If there are more categories than before, any may be split: then no image is ``confirmed``. ``counted`` are
    the images of confirmed categories in any case; `losses` counts those that leave. ``closed`` are the classes that
    have labelled images only, which do not support them. ``trained`` says whether the embeddings are new ones.
    """

    origin: np.ndarray
    start: np.ndarray
    confirmed: np.ndarray
    counted: np.ndarray
    closed: np.ndarray
    n_started: int
    keep: bool
    trained: bool

    @classmethod
    def of(
        cls,
        before: np.ndarray,
        labels: np.ndarray,
        released: np.ndarray,
        targets: CategoryTargets,
        n_classes: int,
        features: Tensor,
        *,
        keep: bool,
        trained: bool,
        has_new_label: np.ndarray,
    ) -> "Continuation":
        """``before`` is the previous category of each image (-1: none), ``released`` marks images that the user marked
        as wrong, which may move anywhere. Without new labels (``has_new_label``, by image) no other image moves."""
        n_known = int(labels.max(initial=-1)) + 1
        origin = np.where((before >= 0) & ~released, targets.clusters[before], -1)
        origin = np.where(labels >= 0, labels, origin)
        counted = (before >= 0) & targets.confirmed[before] & (labels < 0) & ~released
        confirmed = _confirmed(counted, labels, n_classes - targets.n_clusters, keep=keep)
        closed = np.zeros(n_classes, dtype=bool)
        is_empty = np.bincount(origin[(origin >= 0) & (labels < 0)], minlength=n_classes) == 0
        closed[:n_known] = is_empty[:n_known] & ~supported_classes(features, labels, n_known)
        start = origin
        if has_new_label.any() and not trained:
            unlabelled_in = np.where((before >= 0) & has_new_label, targets.clusters[before], -1)
            moved = moved_by_labels(features, labels, origin, unlabelled_in, n_classes, ~closed[:n_known])
            start = np.where(confirmed, origin, moved) if keep else moved
        return cls(origin, start, confirmed, counted, closed, targets.n_clusters, keep, trained)

    def fixed(self, labels: np.ndarray) -> np.ndarray:
        """The cluster of each image that must not move (-1 elsewhere)."""
        return np.where(self.confirmed, self.start, labels) if self.keep else labels

    def starts(self, features: Tensor, labels: np.ndarray) -> list[Tensor]:
        """Two sets of initial centroids: the previous members, and the labelled images of each class only."""
        n_known = int(labels.max(initial=-1)) + 1
        members = cluster_means(features, self.start, self.n_started)
        by_label = cluster_means(features, np.where(self.start < n_known, labels, self.start), self.n_started)
        return [members, by_label]

    def holding(self, partition: Partition, n_known: int) -> Partition:
        """With images where they started that may not leave it for the cluster they are now in."""
        clusters = partition.clusters
        is_held = self.confirmed & (self.keep | (clusters >= n_known))
        if not self.trained:
            is_held |= (self.start >= 0) & (clusters < self.n_started)
        return replace(partition, clusters=np.where(is_held, self.start, clusters))

    def losses(self, clusters: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> list[CategoryLoss]:
        """The confirmed categories that lose more than a few percent of their images to other classes, or to categories
        without a name, which are counted together."""
        members, n_known = np.where(self.counted | (labels >= 0), self.origin, -1), len(classes)
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


def _confirmed(counted: np.ndarray, labels: np.ndarray, n_added: int, *, keep: bool) -> np.ndarray:
    """The images of confirmed categories (``counted``) that may not be split off. If the user asks for ``n_added`` more
    categories than there were, these are none, or with ``keep`` all."""
    if n_added > 0 and not keep:
        return np.zeros_like(counted)
    if n_added > int(((labels < 0) & ~counted).sum()):
        raise ConfigError(
            f"--keep-confirmed leaves too few images for {n_added} more categories; leave it out, or lower --n-classes"
        )
    return counted


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


def is_clearly_better(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the first of two paired classifiers is right more often, by two standard errors (McNemar's test)."""
    gained, lost = int((one & ~other).sum()), int((other & ~one).sum())
    return gained - lost > 2 * (gained + lost) ** 0.5
