"""What a fit says about its categories: nearest known class, parts of known classes, suggested merges and splits."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from promptcal.discovery.links import Connections, measure_connections
from promptcal.discovery.merging import suggest_merges
from promptcal.discovery.nearest_known import nearest_known, unit_centroids
from promptcal.run.assignments import Assignments
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel

LOW_STABILITY = 0.5  # fewer than half of the other read-outs agree
COLUMNS = (
    *("cluster", "name", "kind", "images", "labelled", "stability"),
    *("nearest_known", "distance", "part_of", "merge_with", "split"),
)


class Category(JSONModel):
    """A category: its size, the nearest other category that is known, and advice.

    ``distance`` is 1 - cosine of the mean embeddings. ``part_of``: the known class that a discovered category cannot be
    told apart from. ``merge_with``: other categories that it may be merged with. ``split``: why it may be several.
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
    """A cluster that a fit with an estimated number of classes merged into another, and the share of its images."""

    into: str
    images: int
    connection: float
    false_rate: float


class CategoryTable(JSONModel):
    """All categories by number, and suggested merges, the most certain first."""

    categories: list[Category]
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


def describe_categories(assignments: Assignments, embeddings: np.ndarray) -> CategoryTable:
    """From the final assignments of the images and their embeddings."""
    n = len(assignments.names)
    known = np.flatnonzero(assignments.known)
    order = np.concatenate([known, np.flatnonzero(~np.asarray(assignments.known, dtype=bool))]).astype(np.int64)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    features = torch.nn.functional.normalize(torch.from_numpy(np.asarray(embeddings, dtype=np.float32)), dim=1)
    connections = measure_connections(features, position[assignments.clusters], n, len(known))
    nearest, cosine = nearest_known(
        unit_centroids(features.numpy(), assignments.clusters, n), [int(number) for number in known]
    )
    merges = [
        SuggestedMerge(
            cluster=int(order[m.other]), into=int(order[m.kept]), connection=m.connection, false_rate=m.false_rate
        )
        for m in suggest_merges(connections)
    ]
    part_of = _parts(connections, order, assignments.names)
    split = _splits(assignments, connections, position)
    stability = assignments.category_stability()
    sizes = np.bincount(assignments.clusters, minlength=n)
    labelled = np.bincount(assignments.clusters[assignments.labelled], minlength=n)
    categories = [
        Category(
            cluster=number,
            name=name,
            kind="known" if assignments.known[number] else "new",
            images=int(sizes[number]),
            labelled=int(labelled[number]),
            stability=None if stability is None or np.isnan(stability[number]) else float(stability[number]),
            nearest_known=None if nearest[number] < 0 else assignments.names[nearest[number]],
            distance=None if nearest[number] < 0 else max(0.0, 1 - float(cosine[number])),
            part_of=part_of.get(number),
            merge_with=_partners(number, merges, assignments.names),
            split=split.get(number),
        )
        for number, name in enumerate(assignments.names)
    ]
    return CategoryTable(categories=categories, merges=merges)


def _parts(connections: Connections, order: np.ndarray, names: Sequence[str]) -> dict[int, str]:
    """The known class that each discovered category cannot be told apart from."""
    n_known, threshold = connections.n_known, connections.classes.merge_threshold()
    with_known = connections.links.connections()[n_known:, :n_known]
    if not with_known.size:
        return {}
    best = with_known.argmax(axis=1)
    found = np.flatnonzero(with_known[np.arange(len(best)), best] > threshold)
    return {int(order[n_known + i]): names[order[best[i]]] for i in found}


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


def _cells(category: Category) -> list[Any]:
    values = category.model_dump()
    values["merge_with"] = "; ".join(category.merge_with)
    return [f"{v:.4f}" if isinstance(v, float) else "" if v is None else v for v in (values[c] for c in COLUMNS)]
