"""A summarised table for people (terminal, Markdown) and programs (CSV); the same summary gives the same bytes."""

import math
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from promptcal.experiments.definition import ACCURACIES, PARTS
from promptcal.experiments.efficiency import EfficiencyJob
from promptcal.experiments.jobs import Outcome, RunOptions
from promptcal.experiments.summary import CellSummary, Statistic, Summary
from promptcal.runtime import files


@dataclass(frozen=True)
class Section:
    """One grid of the report: the cells of a column of the table, or of several where they are the same runs."""

    title: str
    paper: str  # heading of the published figures
    cells: list[CellSummary]


def sections(summary: Summary) -> list[Section]:
    """A section for each column; at mini scale one for all columns that became the same."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column in summary.table.columns:
        at_mini = (column.benchmark_at("mini"), column.backbone_at("mini"), column.stage)
        groups.setdefault((column.title,) if summary.scale == "full" else at_mini, []).append(column.title)
    found = []
    for titles in groups.values():
        cells = [c for c in summary.cells if c.cell.column.title == titles[0]]
        if summary.scale == "full":
            found.append(Section(titles[0], "paper", cells))
        else:
            found.append(Section(f"mini, for {', '.join(titles)}", f"paper, {titles[0]}", cells))
    return found


def header(summary: Summary, section: Section) -> list[str]:
    parts = [PARTS[part] for part in summary.table.parts]
    difference = ["difference"] if summary.scale == "full" else []
    return ["", *parts, section.paper, *difference, "seeds", "seconds a run"]


def grid(summary: Summary, section: Section) -> list[list[str]]:
    """The cells of a section as text, the published figures in columns of their own."""
    parts = summary.table.parts
    rows = []
    for c in section.cells:
        figures = [_measured(part, c.shown.get(part)) for part in parts]
        if not c.shown:
            figures = [c.status, *("" for _ in parts[1:])]
        comparison = [_joined([_published(c, part) for part in parts])]
        if summary.scale == "full":
            comparison.append(_joined([_difference(c, part) for part in parts]))
        rows.append([c.cell.row.label, *figures, *comparison, _seeds(c), _seconds(c)])
    return rows


def notes(summary: Summary, where: RunOptions) -> list[str]:
    """What a reader has to know about the figures."""
    table = summary.table
    lines = []
    if table.kind == "accuracy":
        other = "last" if summary.epoch == "selected" else "selected"
        lines.append(f"Accuracy in % with the weights of the {summary.epoch} epoch; the CSV has the {other} one's too.")
    if len(summary.seeds) > 1:
        lines.append(f"Mean ± standard deviation (n - 1) over the seeds {', '.join(map(str, summary.seeds))}.")
    else:
        lines.append(f"One seed ({summary.seeds[0]}), so there is no standard deviation.")
    if table.kind == "efficiency":
        lines += [f"Measured on {device}." for device in _devices(summary, where)]
    if summary.settings:
        lines.append(f"Every row with {', '.join(summary.settings)}, but for what the row itself sets.")
    if summary.scale == "mini":
        instead = "backbone" if table.kind == "efficiency" else "images and backbone with the settings of preset quick"
        lines.append(
            f"Mini scale: the embedded {instead}. The paper's figures are not for these: compare orders, not values."
        )
    for row in table.rows if summary.scale == "full" else ():
        for column, figures in row.printed.items():
            printed = " / ".join(f"{f:.1f}" for f in figures if f is not None)
            lines.append(f"{row.label}, {column}: the paper prints {printed}.")
    added = dict.fromkeys(row.added for row in table.rows if row.added)
    return [*lines, *table.notes, *added]


def markdown(summary: Summary, where: RunOptions) -> str:
    lines = [f"# {summary.table.title}", ""]
    for section in sections(summary):
        heads = header(summary, section)
        lines += [f"## {section.title}", "", _line(heads), _line(["---", *("--:" for _ in heads[1:])])]
        lines += [_line(row) for row in grid(summary, section)]
        lines.append("")
    lines += [f"- {note}" for note in notes(summary, where)]
    if summary.troubles:
        lines += ["", "Not there:", ""]
        lines += [f"- `{name}`: {state.name}. {state.reason}" for name, state in sorted(summary.troubles.items())]
    return "\n".join(lines) + "\n"


def show(summary: Summary, where: RunOptions, console: Console) -> None:
    """On a terminal there is less room, so the published figure and the difference stand below the measured one.

    Of more than three parts the deviation does too, and seeds and seconds are left to the files.
    """
    parts = summary.table.parts
    narrow = len(parts) > 3
    for section in sections(summary):
        view = Grid(title=f"{summary.table.title}: {section.title}", title_justify="left", show_lines=True)
        view.add_column("", min_width=10 if narrow else 14)
        for part in parts:
            view.add_column(PARTS[part], justify="right", no_wrap=True)
        for head in () if narrow else ("seeds", "s a run"):
            view.add_column(head, justify="right")
        for c in section.cells:
            figures = [_above_each_other(c, part, "\n± " if narrow else " ± ") for part in parts]
            view.add_row(escape(c.cell.row.label), *figures, *(() if narrow else (_seeds(c), _seconds(c))))
        console.print(view)
        below = "paper, and the difference to it" if summary.scale == "full" else section.paper
        console.print(f"below each figure: {below}", style="dim", highlight=False)
    for note in notes(summary, where):
        console.print(note, markup=False, highlight=False)


def _above_each_other(c: CellSummary, part: str, plus_minus: str) -> str:
    status = c.status if part in ("all", "gflops") else ""
    measured = _measured(part, c.shown.get(part)).replace(" ± ", plus_minus) if c.shown else status
    below = " ".join(text for text in (_published(c, part), _difference(c, part)) if text != "-")
    return f"{measured}\n[dim]{below}[/dim]"


def csv_text(summary: Summary) -> str:
    """One line for each row and column, with the selected and the last epoch's figures."""
    parts = summary.table.parts
    kinds = ("selected_mean", "selected_std", "last_mean", "last_std", "published", "difference")
    lines = []
    for c in summary.cells:
        line = list(_described(summary, c).values())
        for part in parts:
            for statistic in (c.selected.get(part), c.last.get(part)):
                line += ["", ""] if statistic is None else [_exact(statistic.mean), _exact(statistic.std)]
            line += [_exact(c.published.get(part)), _exact(c.difference.get(part))]
        lines.append(line)
    head = list(_described(summary, summary.cells[0]))
    return files.csv_text([*head, *(f"{part}_{kind}" for part in parts for kind in kinds)], lines)


def _described(summary: Summary, c: CellSummary) -> dict[str, str]:
    row, column = c.cell.row, c.cell.column
    source = column.backbone_at if summary.table.kind == "efficiency" else column.benchmark_at
    return {
        "table": summary.table.name,
        "scale": summary.scale,
        "row": row.label,
        "dataset": column.title,
        "benchmark": source(summary.scale),
        "method": row.method or "",
        "stage": c.cell.stage,
        "settings": " ".join([*summary.settings, *row.overrides]),
        "seeds": " ".join(map(str, c.outcomes)),
        "n_seeds": str(len(c.outcomes)),
        "status": c.status,
        "seconds": _exact(c.seconds),
    }


def runs_csv_text(summary: Summary) -> str:
    """One line for each run behind each cell."""
    parts = summary.table.parts
    lines = []
    for c in summary.cells:
        for job, state in zip(c.cell.jobs, c.states, strict=True):
            outcome = c.outcomes.get(job.seed, Outcome({}, {}, math.nan))
            line: list[object] = [c.cell.row.label, c.cell.column.title, c.cell.stage, job.seed, job.name, state.name]
            line.append(_exact(outcome.seconds))
            for part in parts:
                line += [_exact(outcome.selected.get(part)), _exact(outcome.last.get(part))]
            lines.append(line)
    head = ["row", "dataset", "stage", "seed", "run", "state", "seconds"]
    return files.csv_text([*head, *(f"{part}_{kind}" for part in parts for kind in ("selected", "last"))], lines)


# -- numbers as text ------------------------------------------------------------------------------------------


def _exact(value: float | None) -> str:
    """For programs; empty for what is not there."""
    return "" if value is None or math.isnan(value) else f"{value:.10g}"


def _digits(part: str, value: float) -> int:
    """Digits after the point: one for accuracies; for measurements so many that three are significant."""
    if part in ACCURACIES or not value:
        return 1
    return max(0, 2 - math.floor(math.log10(abs(value))))


def _measured(part: str, statistic: Statistic | None) -> str:
    if statistic is None:
        return "-"
    digits = _digits(part, statistic.mean)
    mean = f"{statistic.mean:.{digits}f}"
    return mean if math.isnan(statistic.std) else f"{mean} ± {statistic.std:.{digits}f}"


def _published(c: CellSummary, part: str) -> str:
    return f"{c.published[part]:.{_digits(part, c.published[part])}f}" if part in c.published else "-"


def _difference(c: CellSummary, part: str) -> str:
    return f"{c.difference[part]:+.{_digits(part, c.published[part])}f}" if part in c.difference else "-"


def _joined(figures: list[str]) -> str:
    """``97.9 / 96.6 / 98.5``, or only the first ones where the rest is unknown."""
    while figures and figures[-1] == "-":
        figures = figures[:-1]
    return " / ".join(figures)


def _seeds(c: CellSummary) -> str:
    return f"{len(c.outcomes)} of {len(c.cell.jobs)}" if c.cell.jobs else ""


def _seconds(c: CellSummary) -> str:
    return "" if math.isnan(c.seconds) else f"{c.seconds:.0f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _devices(summary: Summary, where: RunOptions) -> list[str]:
    jobs = [j for c in summary.cells for j in c.cell.jobs if isinstance(j, EfficiencyJob) and j.seed in c.outcomes]
    return sorted({_device(job.results(where)) for job in jobs})


def _device(results: dict[str, object]) -> str:
    device, threads = str(results["device"]), results["threads"]
    return f"{device} ({threads} thread{'' if threads == 1 else 's'})" if device == "cpu" else device
