"""The report's figures as files for papers: map, confusion matrix, attention maps, neighbours, training curves."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from promptcal.errors import ConfigError, DataError, PromptCALWarning
from promptcal.models.tokens import CLS, PROMPTS, UNSUPERVISED
from promptcal.report import FIGURE_NAMES, SPLITS
from promptcal.report.attention_panels import PRETRAINED, AttentionMaps, overlays
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.figure_inputs import FigureInputs, FigureRun, one_of_each
from promptcal.report.measures import Confusion
from promptcal.report.page_data import chart_records
from promptcal.run import Run
from promptcal.runtime import files

_KNOWN, _NEW = "#3f6aa3", "#b95421"
_QUERY, _SAME_CLASS, _OTHER_CLASS = "#2f6fd0", "#2b8a4b", "#c62f35"
_HUES = ("#4a86c5", "#ee7733", "#2ca048", "#c4458c", "#cc9900", "#33aabb", "#d63f26", "#8f72d4", "#858585", "#a8713f")
_MAX_LEGEND, _MAX_NUMBERS = 30, 25
_N_QUERIES = 10
_TILE, _PITCH = 0.8, 0.88  # inches: an image among neighbours, and the distance to the next
_MAX_ATTENTION_COLUMNS = 5  # with more, examples are not drawn side by side
_SUFFIXES = (".png", ".svg", ".pdf")


def write_figure(
    name: str,
    runs: Sequence[Run],
    output: Path | None,
    console: Console,
    *,
    tokens: Sequence[str] = (CLS,),
    split: str = "train",
    root: Path | None = None,
) -> Path:
    """Write a PNG, SVG or PDF, as the suffix of the output says; by default a PNG in the directory of the first run."""
    _check_request(name, runs, tokens, split)
    path = runs[0].directory.figures_folder / _file_name(name, runs, tokens, split) if output is None else output
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"a figure must end in {', '.join(_SUFFIXES)}, not {path.name}")
    if output is not None and not path.absolute().parent.is_dir():
        raise DataError(f"the folder of {path} does not exist; create it first")
    inputs = FigureInputs.load(runs, console, tokens=list(dict.fromkeys(tokens)), split=split, root=root)
    path.parent.mkdir(exist_ok=True)
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):  # class names are not mathematics
        figure = FIGURES[name](inputs)
        options: Any = {"format": path.suffix[1:].lower(), "dpi": 200, "bbox_inches": "tight"}
        files.write_with(path, lambda temporary: figure.savefig(temporary, **options))
    return path


def _check_request(name: str, runs: Sequence[Run], tokens: Sequence[str], split: str) -> None:
    if name not in FIGURES:
        raise ConfigError(f"there is no figure {name!r}; choose one of {', '.join(FIGURES)}")
    if not runs:
        raise ConfigError("no run was given; give at least one run directory")
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}")
    if name != "tsne" and [*tokens] != [CLS]:
        raise ConfigError(f"{name} always shows the class token; --token is for tsne")
    if name == "curves" and len(runs) > 1:
        raise ConfigError("curves are drawn of one run; give one run directory")
    if name == "curves" and split == "test":
        raise ConfigError("curves are of the training; leave out --split test")


def _file_name(name: str, runs: Sequence[Run], tokens: Sequence[str], split: str) -> str:
    """NAME.png, with whatever differs from the default."""
    parts = [name, *(run.path.resolve().name for run in runs if len(runs) > 1)]
    parts += [token for token in tokens if [*tokens] != [CLS]]
    return "-".join([*parts, *([split] if split != SPLITS[0] else [])]) + ".png"


@dataclass(frozen=True)
class _Colours:
    """A group for each point of a map (-1: none), and the name of each group and whether it is new."""

    title: str
    groups: np.ndarray
    names: list[str]
    is_new: list[bool]


def tsne(inputs: FigureInputs) -> Figure:
    """One map: coloured by cluster and, where the truth is known, by true class. Several maps, a row for each token and
    a column for each run: coloured by true class where it is known, else by cluster."""
    runs, tokens = inputs.runs, inputs.tokens
    is_single = len(runs) == len(tokens) == 1
    by_class = _by_true_class(runs)
    shape = (1, len(by_class[:1]) + 1) if is_single else (len(tokens), len(runs))
    figure = Figure(
        figsize=(5.2 * shape[1], 5.6) if is_single else (3.1 * shape[1], 3.3 * shape[0]), layout="constrained"
    )
    panels = figure.subplots(*shape, squeeze=False)
    shown: list[_Colours] = []
    if is_single:
        points = runs[0].coordinates(tokens[0])
        shown = [_by_cluster(runs[0]), *by_class]
        for axes, colours in zip(panels[0], shown, strict=True):
            heading = "" if tokens[0] == CLS else f"{_token_title(tokens[0])}, "
            _draw_map(axes, f"{heading}{colours.title}", points, colours)
    else:
        shown = by_class or [_by_cluster(run) for run in runs]
        for (i, token), (j, run) in product(enumerate(tokens), enumerate(runs)):
            title = f"{run.label} {_token_title(token)}"
            if token in run.embeddings:
                _draw_map(panels[i, j], title, run.coordinates(token), shown[j])
                panels[i, j].set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))  # the same scale, so that titles are aligned
            else:
                _draw_missing(panels[i, j], title, "this network has no such token")
    _draw_legends(figure, panels[-1], shown, shared=bool(by_class) and not is_single)
    return figure


def _by_cluster(run: FigureRun) -> _Colours:
    """A cluster has the colour of the class it matches."""
    analysis = run.analysis
    colours, order = np.array(analysis.colour_numbers), np.argsort(analysis.colour_numbers)
    names = [analysis.display_names()[c] for c in order]
    is_new = [not analysis.assignments.known[c] for c in order]
    return _Colours("clusters", colours[analysis.assignments.clusters[analysis.shown]], names, is_new)


def _by_true_class(runs: Sequence[FigureRun]) -> list[_Colours]:
    """The colours of each run by true class, the same for all runs; empty if no true class is known."""
    truth = runs[0].analysis.truth
    if truth is None:
        return []
    names = list(dict.fromkeys(name for run in runs for name in run.analysis.classes))
    number = {name: i for i, name in enumerate(names)}
    groups = np.array([-1 if name is None else number.get(name, -1) for name in truth])
    is_new = [name not in runs[0].analysis.known_classes for name in names]
    return [_Colours("true classes", groups[run.analysis.shown], names, is_new) for run in runs]


def _draw_map(axes: Axes, title: str, points: np.ndarray, colours: _Colours) -> None:
    size = max(3.0, min(14.0, 12_000 / len(points)))
    style: Any = {"s": size, "linewidths": 0, "alpha": 0.85, "rasterized": len(points) > 2000}
    for group in np.unique(colours.groups):
        chosen = colours.groups == group
        x, y = points[chosen].T
        axes.scatter(x, y, **_mark(colours, int(group)), **style)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_title(title, fontsize=10)
    axes.spines[:].set_visible(False)


def _mark(colours: _Colours, group: int) -> dict[str, Any]:
    """Known groups are circles and new ones diamonds."""
    if group < 0:
        return {"color": "#999999", "marker": "o"}
    return {"color": _colour(group, len(colours.names)), "marker": "D" if colours.is_new[group] else "o"}


def _draw_missing(axes: Axes, title: str, reason: str) -> None:
    axes.set_axis_off()
    axes.set_title(title, fontsize=10)
    axes.text(0.5, 0.5, reason, ha="center", va="center", fontsize=8, color="#777777", transform=axes.transAxes)


def _draw_legends(figure: Figure, panels: Sequence[Axes], shown: Sequence[_Colours], *, shared: bool) -> None:
    """Below each panel of the last row; one legend for all if the groups are the same everywhere."""
    for axes, colours in zip(panels, shown[:1] if shared else shown, strict=False):
        if len(colours.names) > _MAX_LEGEND:
            continue
        handles = [axes.scatter([], [], s=20, **_mark(colours, i)) for i in range(len(colours.names))]
        labels = [_shorten(name) for name in colours.names]
        style: Any = {"fontsize": 8 if shared else 7, "frameon": False}
        if shared:
            figure.legend(
                handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(panels) + 1), **style
            )
        else:
            axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, **style)


def _token_title(token: str) -> str:
    """The name of a token in the paper."""
    return {CLS: "[CLS]", PROMPTS: "[P]"}.get(token) or f"[P]* {token.removeprefix(UNSUPERVISED)}"


def confusion(inputs: FigureInputs) -> Figure:
    matrices = [run.analysis.confusion for run in inputs.runs]
    found = [matrix for matrix in matrices if matrix is not None]
    if len(found) < len(matrices):
        raise DataError("a confusion matrix needs the true classes; run `promptcal evaluate RUN --truth FILE` first")
    largest = max(max(matrix.counts.shape) for matrix in found)
    side = max(3.2, min(14.0, 0.42 * largest))
    figure = Figure(figsize=((side + 1.6) * len(found), side + 1.2), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, run, matrix in zip(panels, inputs.runs, found, strict=True):
        _draw_confusion(axes, matrix, [_shorten(run.analysis.display_names()[c]) for c in matrix.clusters])
        if len(found) > 1:
            axes.set_title(run.label, fontsize=10)
    return figure


def _draw_confusion(axes: Axes, matrix: Confusion, cluster_names: list[str]) -> None:
    rows, columns = matrix.counts.shape
    shares = matrix.counts / np.maximum(matrix.counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axes.axhline(matrix.n_known - 0.5, color=_NEW)
    axes.axvline(matrix.n_known - 0.5, color=_NEW)
    axes.set(xlabel="cluster (known | new)", ylabel="true class (known | new)")
    if max(rows, columns) <= 60:
        axes.set_xticks(range(columns), cluster_names, rotation=90, fontsize=8)
        axes.set_yticks(range(rows), [_shorten(name) for name in matrix.classes], fontsize=8)
    if max(rows, columns) <= _MAX_NUMBERS:
        for i, j in zip(*np.nonzero(matrix.counts), strict=True):
            colour = "white" if shares[i, j] > 0.55 else "#222222"
            axes.text(j, i, str(matrix.counts[i, j]), ha="center", va="center", fontsize=7, color=colour)


def attention(inputs: FigureInputs) -> Figure:
    """Each row is an image; then the map of the pretrained backbone and those of each run."""
    titles, cells = _attention_columns(inputs.runs)
    n, across = cells.shape[:2]
    per_row = 2 if n > 6 and across <= _MAX_ATTENTION_COLUMNS else 1  # examples side by side
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
            axes.set_title(titles[j], fontsize=7)
    return figure


def _attention_columns(runs: Sequence[FigureRun]) -> tuple[list[str], np.ndarray]:
    """The title of each column, and the images (examples x columns x height x width x 3).

    The pretrained backbone is shown once, unless the runs have different ones.
    """
    titles, columns = ["image"], []
    first: AttentionMaps | None = None
    pretrained: list[tuple[Any, ...]] = []
    for run in runs:
        maps = run.attention(first)
        if maps.examples is None or not maps.steps:
            raise DataError(f"{maps.missing.rstrip('.')} ({run.run.path}); choose another figure or another run")
        if maps.missing:
            warnings.warn(maps.missing, PromptCALWarning, stacklevel=2)
        drawn = overlays(maps, 224)
        if first is None:
            first = maps
            columns.append(drawn[:, :1])
        model = run.run.config.model
        backbone = (model.backbone, model.weights, model.pretrained, model.image_size)
        kept = [i for i, step in enumerate(maps.steps) if step != PRETRAINED or backbone not in pretrained]
        if not kept:
            raise DataError(
                f"{run.run.path} trained no network, so its attention is that of the pretrained backbone, which the "
                "figure shows already; leave it out"
            )
        pretrained.append(backbone)
        columns.append(drawn[:, [1 + i for i in kept]])
        titles += [_step_title(run, maps.steps[i], len(runs)) for i in kept]
    return titles, np.concatenate(columns, axis=1)


def _step_title(run: FigureRun, step: str, n_runs: int) -> str:
    if n_runs == 1 or step == PRETRAINED:
        return step
    return run.label if step == f"after {run.run.method.title}" else f"{run.label}\n{step}"


def neighbours(inputs: FigureInputs) -> Figure:
    """Each row is an image, then its nearest neighbours by each run, framed by whether the true class is the same."""
    first, runs = inputs.runs[0], inputs.runs
    queries = one_of_each(first.groups(), _N_QUERIES)
    found = [run.neighbours(queries) for run in runs]
    block = 0.35 + found[0].shape[1] * _PITCH  # inches: a gap, then the neighbours by one run
    size = (_PITCH + len(runs) * block, len(queries) * _PITCH)
    figure = Figure(figsize=size)

    def draw(row: int, left: float, query: int, image: int) -> Axes:
        corner = (left / size[0], 1 - (row * _PITCH + _TILE) / size[1])
        axes = figure.add_axes((*corner, _TILE / size[0], _TILE / size[1]))
        axes.imshow(first.tile(image))
        axes.set(xticks=[], yticks=[])
        _draw_frame(axes, first.analysis, query, image)
        return axes

    for row, query in enumerate(queries.tolist()):
        axes = draw(row, 0.0, query, query)
        axes.set_ylabel(_query_title(first.analysis, query), rotation=0, ha="right", va="center", fontsize=8)
        for number, images in enumerate(found):
            start = _PITCH + (number + 1) * block - images.shape[1] * _PITCH
            for k, image in enumerate(images[row].tolist()):
                draw(row, start + k * _PITCH, query, image)
    if len(runs) > 1:
        for number, run in enumerate(runs):
            centre = _PITCH + (number + 1) * block - found[number].shape[1] * _PITCH / 2
            figure.text(centre / size[0], 1 + 0.08 / size[1], run.label, ha="center", va="bottom", fontsize=10)
    return figure


def _query_title(analysis: ClusterAnalysis, image: int) -> str:
    """The true class of an image, or its category if the truth is not known."""
    name = analysis.truth[image] if analysis.truth is not None else None
    if name is None:
        name = analysis.assignments.categories[image]
    kind = "known" if name in analysis.known_classes else "new"
    return f"{_shorten(analysis.display_name(name))}\n({kind})"


def curves(inputs: FigureInputs) -> Figure:
    records = inputs.runs[0].run.records()
    charts = [*chart_records(records, "training"), *chart_records(records, "graph")]
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


FIGURES: dict[str, Callable[[FigureInputs], Figure]] = dict(
    zip(FIGURE_NAMES, (tsne, confusion, attention, neighbours, curves), strict=True)
)


def _draw_frame(axes: Axes, analysis: ClusterAnalysis, query: int, image: int) -> None:
    query_class, image_class = analysis.true_class_numbers[[query, image]]
    if query == image:
        colour, width = _QUERY, 1.5
    elif query_class < 0 or image_class < 0:
        colour, width = "#bbbbbb", 0.5
    else:
        colour, width = _SAME_CLASS if query_class == image_class else _OTHER_CLASS, 2.0
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
