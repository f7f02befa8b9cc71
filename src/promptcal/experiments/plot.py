"""A table as a bar plot: a panel for each section, a group of bars for each row, published values as marks."""

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from promptcal.experiments.cells import Summary
from promptcal.experiments.definition import ACCURACIES, PARTS
from promptcal.experiments.table_report import TableSection, sections
from promptcal.runtime import files

_COLOURS = ("#3b5b92", "#5aa469", "#e08e45", "#a8d3b0", "#f0bf8f")
_PUBLISHED: dict[str, Any] = {"marker": "D", "s": 22, "facecolor": "white", "edgecolor": "#222222", "zorder": 4}
_SPREAD = {"ecolor": "#333333", "elinewidth": 1.0, "capsize": 2.0}


def write_plot(summary: Summary, path: Path) -> None:
    figure = draw_plot(summary)
    files.write_with(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150, bbox_inches="tight"))


def draw_plot(summary: Summary) -> Figure:
    """A panel for each section; for efficiency a panel for each part, because each has its own unit."""
    table, is_full, shown = summary.table, summary.request.scale == "full", sections(summary)
    is_accuracy = table.kind == "accuracy"
    panels = [(s, table.parts) for s in shown] if is_accuracy else [(shown[0], [part]) for part in table.parts]
    labels = [row.label for row in table.rows]
    height = max(3.4, 1.4 + len(labels) * (0.18 + 0.16 * len(panels[0][1])))
    figure = Figure(figsize=(3.2 + 3.4 * len(panels), height), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for panel, (section, parts) in zip(axes, panels, strict=True):
        _bars(panel, section, labels, parts)
        if is_accuracy:
            panel.set_title(section.title if is_full else f"{section.title}\n(marks: {section.paper})")
            panel.set(xlabel="accuracy, %", xlim=(0, 101), xticks=range(0, 101, 20))
        else:
            panel.set_title(PARTS[parts[0]])
            panel.set_xlim(left=0)
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)  # also rows without any value
    colours = zip(table.parts if is_accuracy else [], _COLOURS, strict=False)
    handles: list[Any] = [Patch(color=colour, label=PARTS[part]) for part, colour in colours]
    handles.append(axes[0].scatter([], [], label="paper", **_PUBLISHED))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(table.title if is_accuracy else f"{table.title}: {shown[0].title}", fontweight="bold")
    return figure


def _bars(panel: Axes, section: TableSection, labels: list[str], parts: list[str]) -> None:
    """Horizontal bars with 95 % intervals over seeds; a mark for each published value."""
    thickness = 0.8 / len(parts)
    for cell in section.cells:
        row = labels.index(cell.cell.row.label)
        for i, part in enumerate(parts):
            height = row + (i - (len(parts) - 1) / 2) * thickness
            if part in cell.shown:
                found = cell.shown[part]
                spread = None if math.isnan(found.ci95) else found.ci95
                panel.barh(
                    height, found.mean, thickness * 0.92, color=_COLOURS[i], xerr=spread, error_kw=_SPREAD, zorder=2
                )
            is_comparable = part in ACCURACIES or part in cell.difference  # times of other machines are not
            if part in cell.published and is_comparable:
                panel.scatter(cell.published[part], height, **_PUBLISHED)
        if not cell.shown:
            text: dict[str, Any] = {"va": "center", "fontsize": 7, "color": "#888888", "style": "italic"}
            panel.text(0.01, row, cell.status, transform=panel.get_yaxis_transform(), **text)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
