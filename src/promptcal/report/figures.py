"""The report's figures as files for papers: map, confusion matrix, attention maps, neighbours, training curves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from promptcal.errors import ConfigError, DataError
from promptcal.report import FIGURE_NAMES
from promptcal.report.attention_panels import overlays
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.page_data import chart_records
from promptcal.report.report_inputs import ReportInputs
from promptcal.report.selection import sample_evenly
from promptcal.runtime import files

_KNOWN, _NEW = "#3f6aa3", "#b95421"
_SAME_CLASS, _OTHER_CLASS = "#2b8a4b", "#c62f35"
_HUES = ("#4a86c5", "#ee7733", "#2ca048", "#c4458c", "#cc9900", "#33aabb", "#d63f26", "#8f72d4", "#858585", "#a8713f")
_MAX_LEGEND, _MAX_NUMBERS = 30, 25
_N_QUERIES = 10
_SUFFIXES = (".png", ".svg", ".pdf")


def write_figure(name: str, inputs: ReportInputs, output: Path | None) -> Path:
    """Write a PNG, SVG or PDF, as the suffix of the output says; by default a PNG in the run directory."""
    if name not in FIGURES:
        raise ConfigError(f"there is no figure {name!r}; choose one of {', '.join(FIGURES)}")
    path = inputs.run.directory.figures_folder / f"{name}.png" if output is None else output
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"a figure must end in {', '.join(_SUFFIXES)}, not {path.name}")
    if output is None:
        path.parent.mkdir(exist_ok=True)
    elif not path.absolute().parent.is_dir():
        raise DataError(f"the folder of {path} does not exist; create it first")
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):  # class names are not mathematics
        figure = FIGURES[name](inputs)
        options: Any = {"format": path.suffix[1:].lower(), "dpi": 200, "bbox_inches": "tight"}
        files.write_with(path, lambda temporary: figure.savefig(temporary, **options))
    return path


def tsne(inputs: ReportInputs) -> Figure:
    """The map, coloured by cluster and, where the truth is known, by true class."""
    analysis, points = inputs.analysis, inputs.coordinates()
    shown = analysis.shown
    colours = np.array(analysis.colour_numbers)  # a cluster has the colour of the class it matches
    names = [analysis.display_names()[c] for c in np.argsort(colours)]
    panels = [("clusters", colours[analysis.assignments.clusters[shown]], names)]
    if analysis.truth is not None:
        panels.append(("true classes", analysis.true_class_numbers[shown], analysis.classes))
    n_colours = max(len(names) for _, _, names in panels)
    figure = Figure(figsize=(5.2 * len(panels), 5.6), layout="constrained")
    size = max(3.0, min(14.0, 12_000 / len(shown)))
    style: Any = {"s": size, "linewidths": 0, "alpha": 0.85, "rasterized": len(shown) > 2000}
    is_new = ~np.array(analysis.assignments.known)[analysis.assignments.clusters[shown]]
    for axes, (title, groups, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for group in np.unique(groups):
            colour = "#999999" if group < 0 else _colour(int(group), n_colours)
            for marker, kind in (("o", ~is_new), ("D", is_new)):
                chosen = (groups == group) & kind
                axes.scatter(*points[chosen].T, marker=marker, color=colour, **style)
            if group >= 0 and len(names) <= _MAX_LEGEND:
                axes.scatter([], [], color=colour, label=_shorten(names[group]), s=20)
        axes.set(title=title, xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_visible(False)
        if len(names) <= _MAX_LEGEND:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, fontsize=7, frameon=False)
    return figure


def confusion(inputs: ReportInputs) -> Figure:
    matrix = inputs.analysis.confusion
    if matrix is None:
        raise DataError("a confusion matrix needs the true classes; run `promptcal evaluate RUN --truth FILE` first")
    rows, columns = matrix.counts.shape
    shares = matrix.counts / np.maximum(matrix.counts.sum(axis=1, keepdims=True), 1)
    side = max(3.2, min(14.0, 0.42 * max(rows, columns)))
    figure = Figure(figsize=(side + 1.6, side * rows / columns + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.axhline(matrix.n_known - 0.5, color=_NEW)
    axes.axvline(matrix.n_known - 0.5, color=_NEW)
    axes.set(xlabel="cluster (known | new)", ylabel="true class (known | new)")
    if max(rows, columns) <= 60:
        names = inputs.analysis.display_names()
        axes.set_xticks(range(columns), [_shorten(names[c]) for c in matrix.clusters], rotation=90, fontsize=8)
        axes.set_yticks(range(rows), [_shorten(name) for name in matrix.classes], fontsize=8)
    if max(rows, columns) <= _MAX_NUMBERS:
        for i, j in zip(*np.nonzero(matrix.counts), strict=True):
            colour = "white" if shares[i, j] > 0.55 else "#222222"
            axes.text(j, i, str(matrix.counts[i, j]), ha="center", va="center", fontsize=7, color=colour)
    return figure


def attention(inputs: ReportInputs) -> Figure:
    maps = inputs.attention()
    if maps.examples is None or not maps.steps:
        raise DataError(f"there are no attention maps: {maps.missing}")
    cells = overlays(maps, 224)
    n, across = cells.shape[:2]
    per_row = 2 if n > 6 else 1  # examples side by side
    rows = -(-n // per_row)
    figure = Figure(figsize=(1.25 * across * per_row, 1.32 * rows), layout="constrained")
    panels = figure.subplots(rows, across * per_row, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for i, j in np.ndindex(n, across):
        block, row = divmod(i, rows)
        axes = panels[row, block * across + j]
        axes.imshow(cells[i, j])
        if row == 0:
            axes.set_title("image" if j == 0 else maps.steps[j - 1], fontsize=7)
    return figure


def neighbours(inputs: ReportInputs) -> Figure:
    """Each row is an image and its nearest neighbours, framed by whether the true class is the same."""
    analysis, thumbnails = inputs.analysis, inputs.thumbnails
    queries = _queries(analysis)
    across = analysis.neighbours.shape[1]
    figure = Figure(figsize=(0.85 * (across + 1), 0.98 * len(queries)), layout="constrained")
    panels = figure.subplots(len(queries), across + 1, squeeze=False)
    for row, position in zip(panels, queries, strict=True):
        for axes, tile in zip(row, [position, *analysis.neighbours[position]], strict=True):
            axes.imshow(np.asarray(thumbnails.tile(int(tile))))
            axes.set(xticks=[], yticks=[])
            _draw_frame(axes, analysis, int(position), int(tile))
        category = analysis.assignments.categories[analysis.shown[position]]
        row[0].set_title(_shorten(analysis.display_name(category)), fontsize=7, pad=2)
    return figure


def curves(inputs: ReportInputs) -> Figure:
    charts = [*chart_records(inputs.records, "training"), *chart_records(inputs.records, "graph")]
    if not charts:
        raise DataError("the run has no epoch records, so there are no curves")
    across = min(4, len(charts))
    down = -(-len(charts) // across)
    figure = Figure(figsize=(3.4 * across, 2.7 * down), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, chart in zip(panels, charts, strict=False):
        for line, colour in zip(chart["lines"], (_KNOWN, _NEW), strict=False):
            axes.plot(*np.array(line["points"]).T, color=colour, marker=".", ms=4, label=line["name"] or None)
        for epoch, stage in chart["stages"]:
            if epoch > chart["first"]:
                axes.axvline(epoch - 0.5, color="#888888", ls=":", lw=1)
            axes.annotate(stage, (epoch, 1.0), xycoords=("data", "axes fraction"), fontsize=6, va="bottom")
        axes.set_title(chart["name"], fontsize=9, pad=12)
        axes.set_xlabel("epoch", fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if len(chart["lines"]) > 1:
            axes.legend(fontsize=7, frameon=False)
    for axes in panels[len(charts) :]:
        axes.set_axis_off()
    return figure


FIGURES: dict[str, Callable[[ReportInputs], Figure]] = dict(
    zip(FIGURE_NAMES, (tsne, confusion, attention, neighbours, curves), strict=True)
)


def _queries(analysis: ClusterAnalysis) -> np.ndarray:
    """Positions of unlabelled images, one from the middle of each cluster, from at most ten clusters."""
    clusters = analysis.assignments.clusters[analysis.shown]
    unlabelled = ~analysis.assignments.labelled[analysis.shown]
    members = [np.flatnonzero((clusters == c) & unlabelled) for c in range(analysis.n_clusters)]
    return sample_evenly(np.array([m[len(m) // 2] for m in members if len(m)]), _N_QUERIES)


def _draw_frame(axes: Axes, analysis: ClusterAnalysis, query: int, tile: int) -> None:
    query_class, tile_class = analysis.true_class_numbers[analysis.shown[[query, tile]]]
    if query == tile:
        colour, width = "#222222", 1.5
    elif query_class < 0 or tile_class < 0:
        colour, width = "#bbbbbb", 0.5
    else:
        colour, width = _SAME_CLASS if query_class == tile_class else _OTHER_CLASS, 2.0
    axes.spines[:].set(color=colour, linewidth=width)


def _colour(number: int, total: int) -> Any:
    if total <= len(_HUES):
        return to_rgb(_HUES[number])
    if total <= 20:
        return colormaps["tab20"](number)[:3]
    return tuple(hsv_to_rgb(((number * 0.381966) % 1, 0.55 + 0.15 * (number % 3), 0.85 - 0.15 * (number // 3 % 3))))


def _shorten(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= 22 else name[:21] + "…"
