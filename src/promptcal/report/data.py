"""What the page shows, as plain values for JSON: a pure function of what a run left behind."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from promptcal.config import Config
from promptcal.methods import METHODS
from promptcal.metrics import discovery_accuracy
from promptcal.report import measures
from promptcal.run.inference import Assignments
from promptcal.runtime.files import finite

_LINES = {
    "loss": "Loss",
    "validation/score": "Validation score",
    "validation/known": "Validation accuracy, known",
    "validation/silhouette": "Silhouette, new",
}
_GRAPH_LINES = {
    "positives": "Positives per query",
    "without_positives": "Queries without any",
    "precision": "Precision",
    "recall": "Recall",
}
_TOKENS = {"cls": "class token", "prompt": "prompts"}


@dataclass(frozen=True)
class ClusterAnalysis:
    """A run's end: its images, where they were put, and everything measured of that for the report and the figures.

    ``shown`` are the images with a picture and a place on the map, in the order of the tiles.
    """

    assignments: Assignments
    embeddings: np.ndarray
    known_classes: list[str]
    temperature: float
    truth: list[str | None] | None
    shown: np.ndarray

    @property
    def n_clusters(self) -> int:
        return len(self.assignments.names)

    @cached_property
    def centres(self) -> np.ndarray:
        return measures.unit_centres(self.embeddings, self.assignments.clusters, self.n_clusters)

    @cached_property
    def cosines(self) -> np.ndarray:
        return self.embeddings @ self.centres.T

    @cached_property
    def own_cosine(self) -> np.ndarray:
        return self.cosines[np.arange(len(self.embeddings)), self.assignments.clusters]

    @cached_property
    def cohesion(self) -> np.ndarray:
        return measures.cohesion(self.own_cosine, self.assignments.clusters, self.n_clusters)

    @cached_property
    def order(self) -> np.ndarray:
        """All images by cluster, in each from the most typical to the most doubtful."""
        return measures.typical_order(self.assignments.clusters, self.assignments.confidence, self.own_cosine)

    @cached_property
    def alternatives(self) -> measures.Alternatives:
        return measures.alternatives(self.cosines, self.assignments.clusters, self.centres)

    @cached_property
    def doubtful(self) -> np.ndarray:
        """Unlabelled images that might belong to their second-best cluster."""
        near = self.alternatives.margins < measures.doubt_margin(self.temperature)
        return near & ~self.assignments.labelled

    @cached_property
    def neighbours(self) -> np.ndarray:
        """Of each shown image the nearest shown ones, as places among the shown."""
        return measures.nearest_neighbours(self.embeddings[self.shown])

    @cached_property
    def confusion(self) -> measures.Confusion | None:
        if self.truth is None:
            return None
        a = self.assignments
        known = [a.names.index(name) for name in self.known_classes]
        return measures.confusion(self.truth, a.clusters, a.labelled, self.known_classes, self.n_clusters, known)

    @cached_property
    def classes(self) -> list[str]:
        """The true classes, known ones first, in the order of the confusion matrix."""
        if self.confusion is not None:
            return self.confusion.classes
        return sorted({t for t in self.truth or [] if t is not None})

    @cached_property
    def colour_numbers(self) -> list[int]:
        """A colour for each cluster: that of the class it matches best, where the truth is known."""
        if self.confusion is None:
            return list(range(self.n_clusters))
        return [self.confusion.clusters.index(c) for c in range(self.n_clusters)]

    def display_name(self, cluster: int) -> str:
        """Known classes by name, discovered ones as "new 1"."""
        return self.shown_name(self.assignments.names[cluster])

    def shown_name(self, name: str) -> str:
        return name if name in self.known_classes else re.sub(r"^new-(\d+)$", r"new \1", name)


def page_data(
    found: ClusterAnalysis,
    *,
    title: str,
    config: Config,
    results: dict[str, Any],
    records: Sequence[dict[str, Any]],
    coordinates: np.ndarray,
    tiles: dict[str, int] | None,
    attention: dict[str, Any],
    changes: dict[str, Any] | None,
    fingerprint: str,
    root: str | None,
    folder: str | None,
    next_step: str,
    version: str,
) -> dict[str, Any]:
    """Everything, ready for JSON; long columns of numbers are packed."""
    classes = found.classes
    return finite(
        {
            "title": title,
            "fingerprint": fingerprint,
            "root": root,
            "folder": folder,
            "next": next_step,
            "version": version,
            "summary": summary(found, config, results),
            "settings": settings(config),
            "accuracy": accuracy_rows(found, results),
            "clusters": clusters(found),
            "images": images(found, classes),
            "classes": classes,
            "tiles": tiles,
            "map": packed(coordinates.astype("<f4")),
            "confusion": confusion_record(found),
            "curves": curves(records),
            "graph": graph_curves(records),
            "attention": attention,
            "changes": changes,
        }
    )


def summary(found: ClusterAnalysis, config: Config, results: dict[str, Any]) -> dict[str, Any]:
    a = found.assignments
    return {
        "images": len(a),
        "shown": len(found.shown),
        "labelled": int(a.labelled.sum()),
        "known": sum(a.known),
        "new": found.n_clusters - sum(a.known),
        "doubtful": int(found.doubtful.sum()),
        "method": METHODS[config.method].title,
        "backbone": config.model.backbone,
        "seconds": results.get("seconds"),
        "protocol": results.get("protocol", "transductive"),
        "temperature": found.temperature,
        "doubtMargin": measures.doubt_margin(found.temperature),
    }


def settings(config: Config) -> list[list[str]]:
    """Every setting as key and value; sections of other methods are left out."""
    rows: list[list[str]] = []
    for key, value in config.model_dump().items():
        if key in METHODS and key != config.method:
            continue
        pairs = [(f"{key}.{inner}", v) for inner, v in value.items()] if isinstance(value, dict) else [(key, value)]
        rows += [
            [name, "none" if v is None else str(v).lower() if isinstance(v, bool) else str(v)] for name, v in pairs
        ]
    return rows


def accuracy_rows(found: ClusterAnalysis, results: dict[str, Any]) -> list[dict[str, Any]]:
    """All, known and new by step of the method; the last row is the end result."""
    method = METHODS.get(results.get("method", ""))
    steps = {"kmeans": "k-means, frozen backbone", "semi_supervised_kmeans": "semi-supervised k-means, frozen backbone"}
    if method is not None:
        steps |= method.stage_titles or {results["method"]: method.title}
    rows = [
        {"step": step_title, **{part: results[step]["accuracy"][part] for part in ("all", "known", "new")}}
        for step, step_title in steps.items()
        if "accuracy" in results.get(step, {})
    ]
    if rows or found.truth is None:
        return rows
    a = found.assignments
    scored = [i for i, t in enumerate(found.truth) if t is not None and not a.labelled[i]]
    if not scored:
        return []
    end = discovery_accuracy([found.truth[i] for i in scored], a.clusters[scored], found.known_classes)
    return [{"step": "this run", "all": end.all, "known": end.known, "new": end.new}]


def clusters(found: ClusterAnalysis) -> list[dict[str, Any]]:
    a = found.assignments
    sizes = np.bincount(a.clusters, minlength=found.n_clusters)
    labelled = np.bincount(a.clusters[a.labelled], minlength=found.n_clusters)
    doubtful = np.bincount(a.clusters[found.doubtful], minlength=found.n_clusters)
    nearest, cosine = measures.nearest_known(found.centres, np.flatnonzero(a.known).tolist())
    return [
        {
            "name": found.display_name(c),
            "label": a.names[c],
            "known": a.known[c],
            "colour": found.colour_numbers[c],
            "size": int(sizes[c]),
            "labelled": int(labelled[c]),
            "doubtful": int(doubtful[c]),
            "cohesion": float(found.cohesion[c]),
            "nearest": int(nearest[c]),
            "nearestCosine": float(cosine[c]),
        }
        for c in range(found.n_clusters)
    ]


def images(found: ClusterAnalysis, classes: Sequence[str]) -> dict[str, Any]:
    a = found.assignments
    number = {name: i for i, name in enumerate(classes)}
    truth = [-1 if t is None else number[t] for t in found.truth or [None] * len(a)]
    return {
        "paths": list(a.paths),
        "cluster": packed(a.clusters.astype("<u2")),
        "confidence": packed(a.confidence.astype("<f4")),
        "cosine": packed(found.own_cosine.astype("<f4")),
        "labelled": packed(a.labelled.astype("u1")),
        "doubtful": packed(found.doubtful.astype("u1")),
        "second": packed(found.alternatives.clusters.astype("<u2")),
        "margin": packed(found.alternatives.margins.astype("<f4")),
        "truth": packed(np.array(truth, dtype="<i4")),
        "order": packed(found.order.astype("<u4")),
        "shown": packed(found.shown.astype("<u4")),
        "neighbours": packed(found.shown[found.neighbours].astype("<u4")),
        "neighboursEach": int(found.neighbours.shape[1]),
    }


def packed(column: np.ndarray) -> dict[str, str]:
    """A column of numbers as little-endian bytes in base64, with the name of its type."""
    return {"type": column.dtype.str.lstrip("<|"), "data": base64.b64encode(column.tobytes()).decode("ascii")}


def confusion_record(found: ClusterAnalysis) -> dict[str, Any] | None:
    matrix = found.confusion
    if matrix is None:
        return None
    return {
        "classes": matrix.classes,
        "knownClasses": matrix.n_known_classes,
        "clusters": matrix.clusters,
        "knownClusters": matrix.n_known_clusters,
        "counts": matrix.counts.tolist(),
        "standsFor": matrix.stands_for,
    }


def curves(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chart for each of loss and validation, with a point for each epoch that has it."""
    return [chart for key, name in _LINES.items() if (chart := _chart(records, name, {"": key}))]


def graph_curves(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the affinity graph fared, with a line for each token."""
    return [
        chart
        for key, name in _GRAPH_LINES.items()
        if (chart := _chart(records, name, {title: f"{token}/{key}" for token, title in _TOKENS.items()}))
    ]


def _chart(records: Sequence[dict[str, Any]], name: str, keys: dict[str, str]) -> dict[str, Any] | None:
    """Epochs are counted on through the stages."""
    lines = []
    for title, key in keys.items():
        points = [[x, r[key]] for x, r in enumerate(records, start=1) if r.get(key) is not None]
        if points:
            lines.append({"name": title, "points": points})
    if not lines:
        return None
    told = [x for line in lines for x, _ in line["points"]]
    first, last = min(told), max(told)
    stages = [
        [x, records[x - 1]["stage"]]
        for x in range(first, last + 1)
        if x == first or records[x - 1]["stage"] != records[x - 2]["stage"]
    ]
    return {"name": name, "lines": lines, "stages": stages, "first": first, "last": last}
