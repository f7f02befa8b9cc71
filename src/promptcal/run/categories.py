"""What a fit says about its categories: nearest known class, parts of known classes, suggested merges and splits."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from promptcal.discovery.links import Connections, Neighbourhoods, measure_connections
from promptcal.discovery.merging import suggest_merges
from promptcal.discovery.nearest_known import nearest_known, unit_centroids
from promptcal.discovery.partition import BLOCK
from promptcal.metrics import contingency_table
from promptcal.run.assignments import Assignments
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel

LOW_STABILITY = 0.5  # fewer than half of the read-out's heads agree
_MOST_COMPARED = 5000  # categories; tables of all pairs take memory by the square, and few images of each are drawn
_LEAST_LABELLED = 2  # labelled images of a known class that are nearest to a category that is part of it
_LEAST_RATIO = 0.5  # of their share to the expected one
COLUMNS = (
    *("cluster", "name", "kind", "images", "labelled", "stability"),
    *("nearest_known", "distance", "part_of", "merge_with", "split"),
)


class CategoryDescription(JSONModel):
    """A category: its size, the nearest other category that is known, and advice.

    ``distance`` is 1 - cosine of the mean embeddings. ``part_of``: the known class that a discovered category is
    probably part of, because labelled images of the class are nearest to it. ``merge_with``: other categories that it
    may be merged with. ``split``: why it may be several.
    """

    cluster: int
    name: str
    kind: Literal["known", "new"]
    images: int
    labelled: int
    stability: float | None = None
    nearest_known: str | None = None
    distance: float | None = None
    part_of: str | None = None
    merge_with: list[str] = Field(default_factory=list)
    split: str | None = None


class SuggestedMerge(JSONModel):
    """A discovered category and the one to merge it into, by cluster number.

    ``connection``: see `promptcal.discovery.links`. ``false_rate``: the share of the known classes that are connected
    as strongly with another known class.
    """

    cluster: int
    into: int
    connection: float
    false_rate: float


class AutomaticMerge(JSONModel):
    """A cluster that a fit with an estimated number of classes merged into another, and the number of its images."""

    into: str
    images: int
    connection: float
    false_rate: float


class CategoryTable(JSONModel):
    """All categories by number, and suggested merges, the most certain first."""

    categories: list[CategoryDescription]
    merges: list[SuggestedMerge] = Field(default_factory=list)

    def write_csv(self, file: Any) -> None:
        files.write_csv(file, COLUMNS, (_cells(category) for category in self.categories))

    def advice(self) -> list[str]:
        """A sentence for each category that may be part of a known class, one of several parts, or several."""
        found = [f"{c.name} is probably part of {c.part_of}." for c in self.categories if c.part_of is not None]
        names = [category.name for category in self.categories]
        found += [
            f"{names[m.cluster]} and {names[m.into]} may be one category."
            for m in self.merges
            if self.categories[m.cluster].part_of != names[m.into]
        ]
        return found + [
            f"{c.name} may be several categories: {c.split}." for c in self.categories if c.split is not None
        ]


def describe_categories(
    assignments: Assignments, features: Tensor, near: Neighbourhoods | None = None
) -> CategoryTable:
    """From the final assignments of the images and their L2-normalised embeddings, whose `Neighbourhoods` may be known
    already."""
    n = len(assignments.names)
    known = np.flatnonzero(assignments.known)
    order = np.concatenate([known, np.flatnonzero(~np.asarray(assignments.known, dtype=bool))]).astype(np.int64)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    centroids = unit_centroids(features.cpu().numpy(), assignments.clusters, n)
    nearest, cosine = nearest_known(centroids, [int(number) for number in known])
    part_of, merges, split = {}, [], {}
    if n <= _MOST_COMPARED:
        connections = measure_connections(features, position[assignments.clusters], n, len(known), near=near)
        part_of = parts_of_known(assignments, _nearest_of_labelled(assignments, features, centroids))
        merges = _suggested(connections, order, part_of)
        split = _splits(assignments, connections, position)
    stability = assignments.category_stability()
    sizes = np.bincount(assignments.clusters, minlength=n)
    labelled = np.bincount(assignments.clusters[assignments.labelled], minlength=n)
    categories = [
        CategoryDescription(
            cluster=number,
            name=name,
            kind="known" if assignments.known[number] else "new",
            images=int(sizes[number]),
            labelled=int(labelled[number]),
            stability=None if stability is None or np.isnan(stability[number]) else float(stability[number]),
            nearest_known=None if nearest[number] < 0 else assignments.names[nearest[number]],
            distance=None if nearest[number] < 0 else max(0.0, 1 - float(cosine[number])),
            part_of=assignments.names[part_of[number]] if number in part_of else None,
            merge_with=_partners(number, merges, assignments.names),
            split=split.get(number),
        )
        for number, name in enumerate(assignments.names)
    ]
    return CategoryTable(categories=categories, merges=merges)


def _nearest_of_labelled(assignments: Assignments, features: Tensor, centroids: np.ndarray) -> np.ndarray:
    """The category with the nearest centroid of each labelled image."""
    labelled = torch.from_numpy(np.flatnonzero(assignments.labelled)).to(features.device)
    columns = torch.from_numpy(centroids.T).to(features.device)
    return torch.cat([(features[rows] @ columns).argmax(dim=1) for rows in labelled.split(BLOCK)]).cpu().numpy()


def parts_of_known(assignments: Assignments, nearest: np.ndarray) -> dict[int, int]:
    """The known class that each discovered category is probably part of; ``nearest`` is the category with the nearest
    centroid of each labelled image.

    If a discovered category with m images is part of a known class with u other unlabelled images, then about m / (m +
    u) of the labelled images of the class are nearest to it. At least half as many must be, and two of them.
    """
    known, n = np.asarray(assignments.known, dtype=bool), len(assignments.names)
    unlabelled = np.bincount(assignments.clusters[~assignments.labelled], minlength=n)
    own = assignments.clusters[assignments.labelled]
    lost = contingency_table(own, nearest, n, n)
    labelled = np.maximum(np.bincount(own, minlength=n), 1)
    found = {}
    for category in np.flatnonzero(~known).tolist():
        expected = unlabelled[category] / np.maximum(unlabelled[category] + unlabelled, 1)
        share = np.where(known & (lost[:, category] >= _LEAST_LABELLED), lost[:, category] / labelled, 0.0)
        ratio = share / np.maximum(expected, 1e-12)
        best = int(ratio.argmax())
        if ratio[best] >= _LEAST_RATIO:
            found[category] = best
    return found


def _suggested(connections: Connections, order: np.ndarray, part_of: dict[int, int]) -> list[SuggestedMerge]:
    """Parts of known classes first, then the most connected pairs."""
    ratios, position = connections.links.connections(), np.argsort(order)
    pairs = list(part_of.items())
    others = ((int(order[m.other]), int(order[m.kept])) for m in suggest_merges(connections))
    pairs += [pair for pair in others if pair not in pairs]
    found = []
    for cluster, into in pairs:
        connection = float(ratios[position[cluster], position[into]])
        rate = connections.classes.false_merge_rate(connection)
        found.append(SuggestedMerge(cluster=cluster, into=into, connection=connection, false_rate=rate))
    return found


def _splits(assignments: Assignments, connections: Connections, position: np.ndarray) -> dict[int, str]:
    """Why a category may be several: its read-outs disagree, or its halves are hardly connected."""
    stability, threshold = assignments.category_stability(), connections.classes.split_threshold()
    found = {}
    for number in range(len(assignments.names)):
        if stability is not None and stability[number] < LOW_STABILITY:
            found[number] = f"its stability is {stability[number]:.2f}"
        elif connections.halves[position[number]] < threshold:
            found[number] = "its images form two groups that are less connected than the halves of a known class"
    return found


def _partners(number: int, merges: Sequence[SuggestedMerge], names: Sequence[str]) -> list[str]:
    pairs = [(m.cluster, m.into) for m in merges]
    return [names[b if a == number else a] for a, b in pairs if number in (a, b)]


def _cells(category: CategoryDescription) -> list[Any]:
    values = category.model_dump()
    values["merge_with"] = "; ".join(category.merge_with)
    return [f"{v:.4f}" if isinstance(v, float) else "" if v is None else v for v in (values[c] for c in COLUMNS)]
