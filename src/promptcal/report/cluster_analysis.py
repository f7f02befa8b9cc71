"""Everything that is measured of a run's clusters for the report and the figures."""

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from promptcal.discovery.links import Neighbourhoods
from promptcal.discovery.nearest_known import unit_centroids
from promptcal.report import measures
from promptcal.run import Assignments
from promptcal.run.categories import CategoryTable, describe_categories

_BLOCK = 4096  # images whose cosines with all centroids are in memory at a time


@dataclass(frozen=True)
class ClusterAnalysis:
    """The images of a run, their clusters, and the measures of both."""

    assignments: Assignments
    embeddings: np.ndarray
    known_classes: list[str]
    temperature: float
    truth: list[str | None] | None
    shown: np.ndarray  # the images with a thumbnail and a point on the map, in the order of the tiles
    stored_categories: CategoryTable | None = None  # None: of a run of an earlier version

    def with_categories(
        self, assignments: Assignments, known_classes: list[str], stored: CategoryTable | None
    ) -> "ClusterAnalysis":
        """The analysis of the same images in other categories. The neighbours are the same."""
        other = replace(self, assignments=assignments, known_classes=known_classes, stored_categories=stored)
        kept = {"neighbours": self.neighbours} if stored else {"neighbours": self.neighbours, "near": self.near}
        other.__dict__.update(kept)  # where `cached_property` keeps them
        return other

    @property
    def n_clusters(self) -> int:
        return len(self.assignments.names)

    @cached_property
    def categories(self) -> CategoryTable:
        """Nearest known class and advice for each category."""
        return self.stored_categories or describe_categories(self.assignments, torch.tensor(self.embeddings), self.near)

    @cached_property
    def near(self) -> Neighbourhoods:
        """Neighbours among many images, for the advice on categories."""
        found = self.assignments
        return Neighbourhoods.of(torch.tensor(self.embeddings), found.clusters, len(found.names))

    @cached_property
    def centroids(self) -> np.ndarray:
        return unit_centroids(self.embeddings, self.assignments.clusters, self.n_clusters)

    @cached_property
    def _nearest(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each image: the cosine with its own centroid, the second-best cluster, and the margin to it."""
        parts = []
        for first in range(0, len(self.embeddings), _BLOCK):
            own = self.assignments.clusters[first : first + _BLOCK]
            cosines = self.embeddings[first : first + _BLOCK] @ self.centroids.T
            parts.append((cosines[np.arange(len(own)), own], *measures.second_best(cosines, own, self.centroids)))
        own_cosine, second, margins = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return own_cosine, second, margins

    @property
    def own_cosine(self) -> np.ndarray:
        return self._nearest[0]

    @property
    def second_best(self) -> tuple[np.ndarray, np.ndarray]:
        """The second-best cluster of each image, and the margin to it."""
        return self._nearest[1:]

    @cached_property
    def doubtful(self) -> np.ndarray:
        """Which images may belong to their second-best cluster; labelled images never do."""
        _, margins = self.second_best
        return (margins < measures.doubtful_margin(self.temperature)) & ~self.assignments.labelled

    @cached_property
    def mislabelled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labelled images that look like another cluster, that cluster, and the margin; the largest margin first.

        Without the image itself, the other cluster has more than twice the softmax probability of the labelled one.
        """
        labelled, a = np.flatnonzero(self.assignments.labelled), self.assignments
        others, margins = measures.other_category_margins(self.embeddings, a.clusters, self.n_clusters, labelled)
        order = np.argsort(-margins, kind="stable")
        order = order[margins[order] > measures.doubtful_margin(self.temperature)]
        return labelled[order], others[order], margins[order]

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The nearest shown images of each shown image, as positions in ``shown``."""
        return measures.nearest_neighbours(self.embeddings[self.shown])

    @cached_property
    def confusion(self) -> measures.Confusion | None:
        if self.truth is None:
            return None
        a = self.assignments
        number = {name: i for i, name in enumerate(a.names)}
        known = [number[name] for name in self.known_classes]
        return measures.confusion(self.truth, a.clusters, a.labelled, self.known_classes, self.n_clusters, known)

    @cached_property
    def classes(self) -> list[str]:
        """The true classes, known classes first, in the order of the confusion matrix."""
        if self.confusion is not None:
            return self.confusion.classes
        return sorted({name for name in self.truth or [] if name is not None})

    @cached_property
    def true_class_numbers(self) -> np.ndarray:
        """The position in ``classes`` of each image's true class; -1 where the truth is not known, or names a class
        that no known class and no unlabelled image has."""
        number = {name: i for i, name in enumerate(self.classes)}
        truth = self.truth or [None] * len(self.assignments)
        return np.array([-1 if name is None else number.get(name, -1) for name in truth], dtype=np.int64)

    @cached_property
    def colour_numbers(self) -> list[int]:
        """The colour of each cluster: that of the class it matches best, where the truth is known."""
        clusters = range(self.n_clusters)
        return list(clusters if self.confusion is None else map(self.confusion.clusters.index, clusters))

    def display_names(self) -> list[str]:
        """The name of each category as the report shows it."""
        return [self.display_name(name) for name in self.assignments.names]

    def display_name(self, name: str) -> str:
        """Known classes have their own name; new-1 becomes "new 1"."""
        return name if name in self.known_classes else re.sub(r"^new-(\d+)$", r"new \1", name)
