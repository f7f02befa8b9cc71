"""Figures of a document: the affinity graph over epochs, validation over epochs, and t-SNE maps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from promptcal.experiments.run_records import RunRecord

_GRAPH_PANELS = {
    "positives": "positives per query",
    "precision": "precision",
    "recall": "recall",
    "without_positives": "queries without positives",
}
_VALIDATION_PANELS = {
    "validation/known": "accuracy on held-out labels of known classes",
    "validation/silhouette": "silhouette of images assigned to new classes",
}


def graph_figure(records: Mapping[str, RunRecord]) -> Figure:
    """Positives, precision, recall and queries without positives over stage 2, for known and new classes."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 4), _GRAPH_PANELS.items(), strict=True):
        for number, (name, record) in enumerate(records.items()):
            epochs = [epoch for epoch in record.epochs if epoch["stage"] == "affinity"]
            for group, style in (("known", "-"), ("new", ":")):
                values = [epoch[f"cls/{key}_{group}"] for epoch in epochs]
                label = f"{name}, {group}"
                axes.plot([epoch["epoch"] for epoch in epochs], values, style, color=f"C{number}", label=label)
        axes.set(title=title, xlabel="epoch")
        axes.set_ylim(bottom=0)
    _legend(figure, 2)
    return figure


def validation_figure(records: Mapping[str, RunRecord]) -> Figure:
    """Validation over all epochs; stage 2 follows stage 1."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), _VALIDATION_PANELS.items(), strict=True):
        for name, record in records.items():
            values = [(number, epoch[key]) for number, epoch in enumerate(record.epochs, start=1) if key in epoch]
            axes.plot(*zip(*values, strict=True) if values else ([], []), ".-", label=name)
        axes.set(title=title, xlabel="epoch")
    _legend(figure, 4)
    return figure


def map_figure(file: Path) -> Figure:
    """t-SNE before and after training: a colour for each class, dots for known classes, crosses for new ones."""
    found = json.loads(file.read_text(encoding="utf-8"))
    known = dict(zip(found["classes"], found["known"], strict=True))
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    for axes, when in zip(figure.subplots(1, 2), ("before", "after"), strict=True):
        for number, name in enumerate(sorted(known, key=lambda name: (not known[name], name))):
            points = [point for point, c in zip(found[when], found["classes"], strict=True) if c == name]
            style: dict[str, Any] = {"marker": "o", "s": 5}
            if not known[name]:
                style = {"marker": "x", "s": 14, "linewidths": 0.8}
            axes.scatter(*zip(*points, strict=True), color=f"C{number % 10}", label=name.replace("_", " "), **style)
        axes.set_title({"before": "frozen backbone", "after": "after training"}[when])
        axes.set(xticks=[], yticks=[])
    _legend(figure, 10)
    return figure


def _legend(figure: Figure, columns: int) -> None:
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)
