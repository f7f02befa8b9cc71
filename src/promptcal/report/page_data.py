"""The data of the page, as plain values for JSON: pure functions of what the run directory holds."""

import base64
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, Literal

import numpy as np

from promptcal.config import Config, flatten
from promptcal.methods.base import Method
from promptcal.report import measures
from promptcal.report.attention_panels import AttentionMaps
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.run import Run, RunDirectory, RunResults, Scores
from promptcal.run.accuracy_rows import accuracy_rows, score_assignments
from promptcal.run.assignments import as_text, read_csv_rows
from promptcal.runtime.json_model import damaged


def read_asset(name: str) -> str:
    return (resources.files("promptcal.report") / "assets" / name).read_text("utf-8")


def summary_record(analysis: ClusterAnalysis, run: Run, results: RunResults) -> dict[str, Any]:
    a = analysis.assignments
    return {
        "images": len(a),
        "shown": len(analysis.shown),
        "labelled": int(a.labelled.sum()),
        "known": sum(a.known),
        "new": analysis.n_clusters - sum(a.known),
        "doubtful": int(analysis.doubtful.sum()),
        "accuracy": None if (accuracy := headline(analysis)) is None else _parts(accuracy),
        "method": run.title,
        "backbone": run.config.model.backbone,
        "seconds": results.seconds,
        "protocol": results.protocol,
        "comparison": run.reason,
        "doubtfulMargin": measures.doubtful_margin(analysis.temperature),
    }


def settings_table(config: Config) -> list[list[str]]:
    """Every setting as name and value."""
    return [
        [name, "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)]
        for name, value in flatten(config.model_dump()).items()
    ]


def accuracy_table(analysis: ClusterAnalysis, method: type[Method[Any]], results: RunResults) -> list[dict[str, Any]]:
    """All, known, new, NMI and ARI by step of the method; the last row is the result."""
    result = results.selected if results.protocol == "inductive" else headline(analysis) or results.selected
    rows = accuracy_rows(results, method, result)
    return [{"step": title, "isResult": is_result, **_parts(scores)} for title, scores, is_result in rows]


def headline(analysis: ClusterAnalysis) -> Scores | None:
    """The accuracy of `assignments.csv`, where the truth is known."""
    return score_assignments(analysis.assignments, analysis.truth, analysis.known_classes)


def _parts(scores: Scores) -> dict[str, float | None]:
    """The mean over the repeats of k-means, as on the terminal and in tables."""
    percent = scores.percent()
    return {part: percent[part] / 100 if part in percent else None for part in ("all", "known", "new", "nmi", "ari")}


def cluster_records(analysis: ClusterAnalysis) -> list[dict[str, Any]]:
    a = analysis.assignments
    sizes = np.bincount(a.clusters, minlength=analysis.n_clusters)
    labelled = np.bincount(a.clusters[a.labelled], minlength=analysis.n_clusters)
    doubtful = np.bincount(a.clusters[analysis.doubtful], minlength=analysis.n_clusters)
    cohesion = measures.cohesion(analysis.own_cosine, a.clusters, analysis.n_clusters)
    stability = a.category_stability()
    number = {name: i for i, name in enumerate(a.names)}
    described = analysis.categories.categories
    return [
        {
            "name": name,
            "label": a.names[c],
            "known": a.known[c],
            "colour": analysis.colour_numbers[c],
            "size": int(sizes[c]),
            "labelled": int(labelled[c]),
            "doubtful": int(doubtful[c]),
            "cohesion": float(cohesion[c]),
            "stability": None if stability is None else float(stability[c]),
            "nearest": number.get(described[c].nearest_known or "", -1),
            "distance": described[c].distance,
            "partOf": number.get(described[c].part_of or "", -1),
            "split": described[c].split,
        }
        for c, name in enumerate(analysis.display_names())
    ]


def merge_records(analysis: ClusterAnalysis) -> list[dict[str, Any]]:
    """Suggested merges, the most certain first."""
    return [{"cluster": m.cluster, "into": m.into, "falseRate": m.false_rate} for m in analysis.categories.merges]


def image_columns(analysis: ClusterAnalysis, thumbnail_sizes: np.ndarray) -> dict[str, Any]:
    a = analysis.assignments
    second, margins = analysis.second_best
    stability = {} if a.stability is None else {"stability": pack(a.stability.astype("<f4"))}
    return {
        **stability,
        "paths": list(a.paths),
        "cluster": pack(a.clusters.astype("<u2")),
        "confidence": pack(a.confidence.astype("<f4")),
        "cosine": pack(analysis.own_cosine.astype("<f4")),
        "labelled": pack(a.labelled.astype("u1")),
        "doubtful": pack(analysis.doubtful.astype("u1")),
        "second": pack(second.astype("<u2")),
        "margin": pack(margins.astype("<f4")),
        "truth": pack(analysis.true_class_numbers.astype("<i4")),
        "order": pack(measures.typical_order(a.clusters, a.confidence, analysis.own_cosine).astype("<u4")),
        "tileSize": pack(thumbnail_sizes.astype("<u2")),
        "shown": pack(analysis.shown.astype("<u4")),
        "neighbours": pack(analysis.shown[analysis.neighbours].astype("<u4")),
        "neighboursPerImage": int(analysis.neighbours.shape[1]),
    }


def mislabelled_record(analysis: ClusterAnalysis) -> dict[str, Any]:
    """The labelled images that look like another cluster, most striking first."""
    labelled, others, margins = analysis.mislabelled
    columns = {"image": labelled.astype("<u4"), "other": others.astype("<u2"), "margin": margins.astype("<f4")}
    return {name: pack(column) for name, column in columns.items()}


def pack(column: np.ndarray) -> dict[str, str]:
    """A column of numbers as little-endian bytes in base64, with the name of its type."""
    return {"type": column.dtype.str.lstrip("<|"), "data": base64.b64encode(column.tobytes()).decode("ascii")}


def confusion_record(analysis: ClusterAnalysis) -> dict[str, Any] | None:
    matrix = analysis.confusion
    if matrix is None:
        return None
    names = {"classes": matrix.classes, "clusters": matrix.clusters, "nKnown": matrix.n_known}
    return names | {"counts": matrix.counts.tolist(), "matchedRows": matrix.matched_rows}


def attention_record(maps: AttentionMaps) -> dict[str, Any]:
    """The steps and examples of the maps; their pixels are in a sheet of their own."""
    images = [] if maps.examples is None else maps.examples.images.tolist()
    return {"steps": maps.steps, "images": images if maps.steps else [], "missing": maps.missing}


def changes_record(directory: RunDirectory, results: RunResults, analysis: ClusterAnalysis) -> dict[str, Any] | None:
    """The summary, and each moved image with its previous category; None for a run that started from no other."""
    changes, name = results.changes, analysis.display_name
    if changes is None:
        return None
    position = {path: i for i, path in enumerate(analysis.assignments.paths)}
    try:
        moves = [(position[r["path"]], name(as_text(r["from_name"]))) for r in read_csv_rows(directory.changes_file)]
    except (KeyError, TypeError) as error:
        raise damaged(directory.changes_file, repr(error)) from error
    origins = sorted({origin for _, origin in moves})
    return {
        "previousRun": changes.previous_run,
        **changes.model_dump(include={"images", "moved", "added", "missing"}),
        "renamed": [{"cluster": r.cluster, "oldName": name(r.old_name)} for r in changes.renamed],
        "removedCategories": [
            {"name": name(r.name), "into": None if r.into is None else name(r.into)} for r in changes.removed_categories
        ],
        "addedCategories": [{"cluster": category.cluster} for category in changes.added_categories],
        "confirmedLosses": [{"message": loss.message(), "kept": loss.kept} for loss in changes.confirmed_losses],
        "origins": origins,
        "image": pack(np.array([image for image, _ in moves], dtype="<u4")),
        "origin": pack(np.array([origins.index(origin) for _, origin in moves], dtype="<u2")),
    }


def chart_records(records: Sequence[dict[str, Any]], kind: Literal["training", "graph"]) -> list[dict[str, Any]]:
    """The charts of training or of the affinity graph that have values; `charts.json` names their lines and keys."""
    declared = json.loads(read_asset("charts.json"))[kind]
    return [chart for name, keys in declared.items() if (chart := _chart(records, name, keys))]


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
