"""The data of the page, as plain values for JSON: pure functions of what the run directory holds."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from promptcal.config import Config
from promptcal.methods.base import Method
from promptcal.metrics import discovery_accuracy
from promptcal.report import measures
from promptcal.report.attention_panels import AttentionMaps
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.run import Run, RunResults, Scores

_TRAINING_CURVES = {
    "loss": "Loss",
    "validation/score": "Validation score",
    "validation/known": "Validation accuracy, known",
    "validation/silhouette": "Silhouette, new",
}
_GRAPH_CURVES = {
    "positives": "Positives per query",
    "without_positives": "Queries without positives",
    "precision": "Precision",
    "recall": "Recall",
}
_GRAPH_TOKENS = {"cls": "class token", "prompt": "prompts"}
_BASELINES = {
    "kmeans": "k-means, frozen backbone",
    "semi_supervised_kmeans": "semi-supervised k-means, frozen backbone",
}


def summary_record(analysis: ClusterAnalysis, run: Run, results: RunResults) -> dict[str, Any]:
    a = analysis.assignments
    return {
        "images": len(a),
        "shown": len(analysis.shown),
        "labelled": int(a.labelled.sum()),
        "known": sum(a.known),
        "new": analysis.n_clusters - sum(a.known),
        "doubtful": int(analysis.doubtful.sum()),
        "method": run.method.title,
        "backbone": run.config.model.backbone,
        "seconds": results.seconds,
        "protocol": results.protocol,
        "doubtfulMargin": measures.doubtful_margin(analysis.temperature),
    }


def settings_table(config: Config) -> list[list[str]]:
    """Every setting as name and value."""
    rows: list[list[str]] = []
    for key, value in config.model_dump().items():
        pairs = [(f"{key}.{inner}", v) for inner, v in value.items()] if isinstance(value, dict) else [(key, value)]
        rows += [
            [name, "none" if v is None else str(v).lower() if isinstance(v, bool) else str(v)] for name, v in pairs
        ]
    return rows


def accuracy_rows(analysis: ClusterAnalysis, method: Method[Any], results: RunResults) -> list[dict[str, Any]]:
    """All, known and new by step of the method; the last row is the final result."""
    steps: dict[str, Scores | None] = {_BASELINES.get(name, name): s for name, s in results.baselines.items()}
    steps |= {method.stage_titles.get(name, method.title): stage.accuracy for name, stage in results.stages.items()}
    if not any(stage.accuracy for stage in results.stages.values()):
        steps[method.title] = results.selected or _score(analysis)
    return [
        {"step": step, "all": scores.all, "known": scores.known, "new": scores.new}
        for step, scores in steps.items()
        if scores is not None
    ]


def _score(analysis: ClusterAnalysis) -> Scores | None:
    """The accuracy on the unlabelled images, where the truth is known."""
    a, truth = analysis.assignments, analysis.true_class_numbers
    scored = (truth >= 0) & ~a.labelled
    if not scored.any():
        return None
    known = range(len(analysis.known_classes))  # they are the first classes
    return Scores.of(discovery_accuracy(truth[scored], a.clusters[scored], known))


def cluster_records(analysis: ClusterAnalysis) -> list[dict[str, Any]]:
    a = analysis.assignments
    sizes = np.bincount(a.clusters, minlength=analysis.n_clusters)
    labelled = np.bincount(a.clusters[a.labelled], minlength=analysis.n_clusters)
    doubtful = np.bincount(a.clusters[analysis.doubtful], minlength=analysis.n_clusters)
    nearest, cosine = measures.nearest_known(analysis.centroids, np.flatnonzero(a.known).tolist())
    return [
        {
            "name": name,
            "label": a.names[c],
            "known": a.known[c],
            "colour": analysis.colour_numbers[c],
            "size": int(sizes[c]),
            "labelled": int(labelled[c]),
            "doubtful": int(doubtful[c]),
            "cohesion": float(analysis.cohesion[c]),
            "nearest": int(nearest[c]),
            "nearestCosine": float(cosine[c]),
        }
        for c, name in enumerate(analysis.display_names())
    ]


def image_columns(analysis: ClusterAnalysis) -> dict[str, Any]:
    a = analysis.assignments
    return {
        "paths": list(a.paths),
        "cluster": pack(a.clusters.astype("<u2")),
        "confidence": pack(a.confidence.astype("<f4")),
        "cosine": pack(analysis.own_cosine.astype("<f4")),
        "labelled": pack(a.labelled.astype("u1")),
        "doubtful": pack(analysis.doubtful.astype("u1")),
        "second": pack(analysis.second_best.clusters.astype("<u2")),
        "margin": pack(analysis.second_best.margins.astype("<f4")),
        "truth": pack(analysis.true_class_numbers.astype("<i4")),
        "order": pack(analysis.order.astype("<u4")),
        "shown": pack(analysis.shown.astype("<u4")),
        "neighbours": pack(analysis.shown[analysis.neighbours].astype("<u4")),
        "neighboursPerImage": int(analysis.neighbours.shape[1]),
    }


def pack(column: np.ndarray) -> dict[str, str]:
    """A column of numbers as little-endian bytes in base64, with the name of its type."""
    return {"type": column.dtype.str.lstrip("<|"), "data": base64.b64encode(column.tobytes()).decode("ascii")}


def confusion_record(analysis: ClusterAnalysis) -> dict[str, Any] | None:
    matrix = analysis.confusion
    if matrix is None:
        return None
    return {
        "classes": matrix.classes,
        "clusters": matrix.clusters,
        "nKnown": matrix.n_known,
        "counts": matrix.counts.tolist(),
        "matchedRows": matrix.matched_rows,
    }


def attention_record(maps: AttentionMaps) -> dict[str, Any]:
    """The steps and examples of the maps; their pixels are in a sheet of their own."""
    images = [] if maps.examples is None else maps.examples.images.tolist()
    return {"steps": maps.steps, "images": images if maps.steps else [], "missing": maps.missing}


def training_charts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chart each of loss and validation, with a point for each epoch that has the value."""
    return [chart for key, name in _TRAINING_CURVES.items() if (chart := _chart(records, name, {"": key}))]


def graph_charts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chart for each statistic of the affinity graph, with a line for each token."""
    return [
        chart
        for key, name in _GRAPH_CURVES.items()
        if (chart := _chart(records, name, {title: f"{token}/{key}" for token, title in _GRAPH_TOKENS.items()}))
    ]


def _chart(records: Sequence[dict[str, Any]], name: str, keys: dict[str, str]) -> dict[str, Any] | None:
    """Epochs are numbered through all stages."""
    lines = []
    for title, key in keys.items():
        points = [[x, r[key]] for x, r in enumerate(records, start=1) if r.get(key) is not None]
        if points:
            lines.append({"name": title, "points": points})
    if not lines:
        return None
    epochs = [x for line in lines for x, _ in line["points"]]
    first, last = min(epochs), max(epochs)
    stages = [
        [x, records[x - 1]["stage"]]
        for x in range(first, last + 1)
        if x == first or records[x - 1]["stage"] != records[x - 2]["stage"]
    ]
    return {"name": name, "lines": lines, "stages": stages, "first": first, "last": last}
