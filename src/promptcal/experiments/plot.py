"""A table as a bar plot: a panel for each section, a group of bars for each row, published values as marks."""

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from promptcal.experiments.definition import PARTS
from promptcal.experiments.summary import Summary
from promptcal.experiments.table_report import Section, sections
from promptcal.runtime import files

_COLOURS = ("#3b5b92", "#5aa469", "#e08e45", "#a8d3b0", "#f0bf8f")
_PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "s": 22,
    "facecolor": "white",
    "edgecolor": "#222222",
    "linewidth": 1.0,
    "zorder": 4,
}

_SPREAD = {"ecolor": "#333333", "elinewidth": 1.0, "capsize": 2.0}


def write_plot(summary: Summary, path: Path) -> None:
    figure = draw(summary)
    files.write_with(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150, bbox_inches="tight"))


def draw(summary: Summary) -> Figure:
    if summary.table.kind == "efficiency":
        return _panels_by_part(summary)
    parts = summary.table.parts
    shown = sections(summary)
    labels = [row.label for row in summary.table.rows]
    height = 1.4 + len(labels) * (0.18 + 0.16 * len(parts))
    figure = Figure(figsize=(3.2 + 3.4 * len(shown), height), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for panel, section in zip(axes, shown, strict=True):
        _bars(panel, section, labels, parts)
        panel.set_title(section.title if summary.scale == "full" else f"{section.title}\n(marks: {section.paper})")
        panel.set_xlabel("accuracy, %")
        panel.set_xlim(0, 101)
        panel.set_xticks(range(0, 101, 20))
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].invert_yaxis()
    _legend(figure, axes[0], parts)
    figure.suptitle(summary.table.title, fontweight="bold")
    return figure


def _bars(panel: Axes, section: Section, labels: list[str], parts: list[str]) -> None:
    """Horizontal bars with the standard deviation over seeds; a mark for each published value."""
    thickness = 0.8 / len(parts)
    for cell in section.cells:
        row = labels.index(cell.cell.row.label)
        for i, part in enumerate(parts):
            place = row + (i - (len(parts) - 1) / 2) * thickness
            if part in cell.shown:
                found = cell.shown[part]
                spread = None if math.isnan(found.std) else found.std
                panel.barh(
                    place, found.mean, thickness * 0.92, color=_COLOURS[i], xerr=spread, error_kw=_SPREAD, zorder=2
                )
            if part in cell.published:
                panel.scatter(cell.published[part], place, **_PUBLISHED)
        if not cell.shown:
            panel.text(1, row, cell.status, va="center", fontsize=7, color="#888888", style="italic")
    _tidy(panel, "x")


def _panels_by_part(summary: Summary) -> Figure:
    """Each measurement has its own unit, so each has its own panel."""
    section = sections(summary)[0]
    parts = summary.table.parts
    figure = Figure(figsize=(3.0 * len(parts), 3.4), layout="constrained")
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    labels = [cell.cell.row.label.replace(" (", "\n(") for cell in section.cells]
    for i, (panel, part) in enumerate(zip(axes, parts, strict=True)):
        for x, cell in enumerate(section.cells):
            if part in cell.shown:
                found = cell.shown[part]
                spread = None if math.isnan(found.std) else found.std
                panel.bar(x, found.mean, 0.6, color=_COLOURS[i], yerr=spread, error_kw=_SPREAD, zorder=2)
            if part in cell.difference:  # times of other machines are not comparable
                panel.scatter(x, cell.published[part], **_PUBLISHED)
        panel.set_xticks(range(len(labels)), labels, fontsize=7)
        panel.set_xlim(-0.6, len(labels) - 0.4)
        panel.set_ylim(bottom=0)
        panel.set_title(PARTS[part])
        _tidy(panel, "y")
    title = f"{summary.table.title}: {section.title}"
    figure.suptitle(title + (" (marks: paper)" if summary.scale == "full" else ""), fontweight="bold")
    return figure


def _legend(figure: Figure, panel: Axes, parts: list[str]) -> None:
    handles: list[Any] = [Patch(color=_COLOURS[i], label=PARTS[part]) for i, part in enumerate(parts)]
    handles.append(panel.scatter([], [], label="paper", **_PUBLISHED))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _tidy(panel: Axes, value_axis: str) -> None:
    panel.grid(axis=value_axis, color="#dddddd", linewidth=0.6, zorder=0)  # type: ignore[arg-type]
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
