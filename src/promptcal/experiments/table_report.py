"""A summary as Markdown, CSV and terminal output. The same summary always gives the same bytes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from promptcal.experiments.cells import CellSummary, Summary, rows_without
from promptcal.experiments.definition import ACCURACIES, FINAL, PARTS, Detail
from promptcal.experiments.efficiency import EfficiencyRecord
from promptcal.experiments.run_records import Outcome, RunRecord
from promptcal.runtime import files


@dataclass(frozen=True)
class Section:
    """One grid of the report: the cells of one column of the table, or of several that are the same runs."""

    title: str
    paper: str  # heading of the published values
    cells: list[CellSummary]


def sections(summary: Summary) -> list[Section]:
    """A section for each column; at mini scale one for all columns that are the same there."""
    is_mini = summary.request.scale == "mini"
    groups: dict[tuple[str, ...], list[str]] = {}
    for column in summary.table.columns:
        same = (column.benchmark, column.backbone, column.score) if is_mini else (column.title,)
        groups.setdefault(same, []).append(column.title)
    found = []
    for titles in groups.values():
        cells = [c for c in summary.cells if c.cell.column.title == titles[0]]
        names = (f"mini, for {', '.join(titles)}", f"paper, {titles[0]}") if is_mini else (titles[0], "paper")
        found.append(Section(*names, cells))
    return found


def notes(summary: Summary) -> list[str]:
    """What a reader has to know about the values."""
    table, request = summary.table, summary.request
    lines = []
    if table.kind == "accuracy":
        other = "last" if request.epoch == "selected" else "selected"
        lines.append(
            f"Accuracy in % with the weights of the {request.epoch} epoch; the CSV also has the {other} epoch."
        )
    seeds = request.unique_seeds
    if len(seeds) > 1:
        lines.append(f"Mean ± standard deviation (n - 1) over the seeds {', '.join(map(str, seeds))}.")
    else:
        lines.append(f"One seed ({seeds[0]}), so there is no standard deviation.")
    records = [record for c in summary.cells for record in c.records.values()]
    machines = {record.machine for record in records if isinstance(record, EfficiencyRecord)}
    lines += [f"Measured on {machine}." for machine in sorted(machines)]
    if request.overrides:
        lines.append(f"All rows with {', '.join(request.overrides)}; a row's own settings have priority.")
    for setting in request.overrides:
        if without := rows_without(table, setting):
            lines.append(f"{setting} does not apply to {', '.join(without)}: their method has no such setting.")
    if request.scale == "mini":
        used = "backbone" if table.kind == "efficiency" else "images and backbone with the settings of preset quick"
        lines.append(f"Mini scale: the embedded {used}. The published values are for other data: compare orders only.")
    for row in table.rows if request.scale == "full" else ():
        for column, values in row.printed.items():
            printed = " / ".join(f"{value:.1f}" for value in values if value is not None)
            lines.append(f"{row.label}, {column}: the paper prints {printed}.")
    added = dict.fromkeys(row.added for row in table.rows if row.added)
    return [*lines, *table.notes, *added]


def markdown(summary: Summary) -> str:
    """The report: a table for each section, the notes, and the runs that cannot be used."""
    parts = summary.table.parts
    difference = ["difference"] if summary.request.scale == "full" else []
    lines = [f"# {summary.table.title}", ""]
    for section in sections(summary):
        head = ["", *(PARTS[part] for part in parts), section.paper, *difference, "seeds", "seconds per run"]
        rows = []
        for c in section.cells:
            values = [_measured(c, part) for part in parts] if c.shown else [c.status, *("" for _ in parts[1:])]
            published = _joined([_published(c, part) for part in parts])
            differences = [_joined([_difference(c, part) for part in parts]) for _ in difference]
            rows.append([c.cell.row.label, *values, published, *differences, _seeds(c), _seconds(c)])
        lines += [f"## {section.title}", "", markdown_table(head, rows, "--:"), ""]
    lines += [f"- {note}" for note in notes(summary)]
    if summary.problems:
        lines += ["", "Missing runs:", ""]
        lines += [f"- `{name}`: {state.name}. {state.reason}" for name, state in sorted(summary.problems.items())]
    return "\n".join(lines) + "\n"


def compact_markdown(summary: Summary) -> str:
    """One Markdown table for a document: a cell holds the values of all parts, and ``details`` describe the runs."""
    table = summary.table
    rows = []
    for row in table.rows:
        cells = {c.cell.column.title: c for c in summary.cells if c.cell.row.label == row.label}
        values = [
            _joined([_measured(cells[c.title], part) for part in table.parts]) if c.title in cells else ""
            for c in table.columns
        ]
        shown = next((c for c in cells.values() if c.records), next(iter(cells.values())))
        rows.append([row.label, *values, *(_detail(shown, detail) for detail in table.details)])
    return markdown_table(["", *(column.title for column in table.columns), *table.details], rows)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]], align: str = "---") -> str:
    """``align`` is the alignment of all columns but the first."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" + f"|{align}" * (len(head) - 1) + "|", *lines[1:]])


def _detail(c: CellSummary, detail: Detail) -> str:
    """Of the runs of a row: how many, their epochs, their mean time, the hashes of their settings."""
    records = [record for record in c.records.values() if isinstance(record, RunRecord)]
    if detail == "seeds":
        return str(len(c.records))
    if not records:
        return ""
    first, score = records[0], c.cell.score
    if detail == "minutes":
        is_whole_run = score == FINAL or score in first.readouts
        return f"{c.seconds / 60:.1f}" if is_whole_run and all(r.has_all_seconds() for r in records) else ""
    if score in first.baselines:
        return ""
    if detail == "epochs":
        stages = [first.stages[score]] if score in first.stages else first.stages.values()
        return " + ".join(str(stage.epochs) for stage in stages)
    return ", ".join(f"`{record.config_hash}`" for record in records)


def show(summary: Summary, console: Console) -> None:
    """On a terminal, the published value and the difference are below the measured value.

    With more than three parts the deviation is below it too, and seeds and seconds are only in the files.
    """
    parts = summary.table.parts
    narrow = len(parts) > 3
    for section in sections(summary):
        view = Grid(title=f"{summary.table.title}: {section.title}", title_justify="left", show_lines=True)
        view.add_column("", min_width=10 if narrow else 14)
        for part in parts:
            view.add_column(PARTS[part], justify="right", no_wrap=True)
        for head in () if narrow else ("seeds", "s per run"):
            view.add_column(head, justify="right")
        for c in section.cells:
            values = [_stacked(c, part, "\n± " if narrow else " ± ") for part in parts]
            view.add_row(escape(c.cell.row.label), *values, *(() if narrow else (_seeds(c), _seconds(c))))
        console.print(view)
        below = "paper, and the difference to it" if summary.request.scale == "full" else section.paper
        console.print(f"below each value: {below}", style="dim", highlight=False)
    for note in notes(summary):
        console.print(note, markup=False, highlight=False)


def _stacked(c: CellSummary, part: str, plus_minus: str) -> str:
    status = c.status if part in ("all", "gflops") else ""
    measured = _measured(c, part).replace(" ± ", plus_minus) if c.shown else status
    below = " ".join(text for text in (_published(c, part), _difference(c, part)) if text != "-")
    return f"{measured}\n[dim]{below}[/dim]"


def csv_text(summary: Summary) -> str:
    """One line for each row and column, with the values of the selected and of the last epoch."""
    lines = []
    for c in summary.cells:
        row, column = c.cell.row, c.cell.column
        line = {
            "table": summary.table.name,
            "scale": summary.request.scale,
            "row": row.label,
            "dataset": column.title,
            "benchmark": column.backbone if summary.table.kind == "efficiency" else column.benchmark,
            "method": row.method or "",
            "score": c.cell.score,
            "settings": " ".join([*summary.request.overrides, *row.overrides]),
            "seeds": " ".join(map(str, c.seeds)),
            "n_seeds": len(c.seeds),
            "status": c.status,
            "seconds": _exact(c.seconds),
        }
        for part in summary.table.parts:
            for epoch, found in (("selected", c.selected.get(part)), ("last", c.last.get(part))):
                line[f"{part}_{epoch}_mean"] = "" if found is None else _exact(found.mean)
                line[f"{part}_{epoch}_std"] = "" if found is None else _exact(found.std)
            line[f"{part}_published"] = _exact(c.published.get(part))
            line[f"{part}_difference"] = _exact(c.difference.get(part))
        lines.append(line)
    return files.csv_text(list(lines[0]), [list(line.values()) for line in lines])


def runs_csv_text(summary: Summary) -> str:
    """One line for each run behind each cell."""
    parts = summary.table.parts
    lines = []
    for c in summary.cells:
        for job, state in zip(c.cell.jobs, c.states, strict=True):
            record = c.records.get(job.name)
            outcome = Outcome({}, {}) if record is None else record.outcome(c.cell.score)
            values = [_exact(epoch.get(part)) for part in parts for epoch in (outcome.selected, outcome.last)]
            place = (c.cell.row.label, c.cell.column.title, c.cell.score, job.seed, job.name, state.name)
            lines.append([*place, "" if record is None else _exact(record.seconds), *values])
    head = ["row", "dataset", "score", "seed", "run", "state", "seconds"]
    return files.csv_text([*head, *(f"{part}_{epoch}" for part in parts for epoch in ("selected", "last"))], lines)


def _exact(value: float | None) -> str:
    """For CSV files; empty if there is no value."""
    return "" if value is None or math.isnan(value) else f"{value:.10g}"


def _format(part: str, reference: float, sign: str = "") -> str:
    """One digit after the point for accuracies, three significant digits of ``reference`` for other measurements."""
    is_accuracy = part in ACCURACIES or not reference
    return f"{sign}.{1 if is_accuracy else max(0, 2 - math.floor(math.log10(abs(reference))))}f"


def _measured(c: CellSummary, part: str) -> str:
    if part not in c.shown:
        return "-"
    found = c.shown[part]
    values = [found.mean] if math.isnan(found.std) else [found.mean, found.std]
    return " ± ".join(format(value, _format(part, found.mean)) for value in values)


def _published(c: CellSummary, part: str) -> str:
    return format(c.published[part], _format(part, c.published[part])) if part in c.published else "-"


def _difference(c: CellSummary, part: str) -> str:
    return format(c.difference[part], _format(part, c.published[part], "+")) if part in c.difference else "-"


def _joined(values: list[str]) -> str:
    """``97.9 / 96.6 / 98.5``, or only the first values if the rest is unknown."""
    while values and values[-1] == "-":
        values = values[:-1]
    return " / ".join(values)


def _seeds(c: CellSummary) -> str:
    return f"{len(c.records)} of {len(c.cell.jobs)}" if c.cell.jobs else ""


def _seconds(c: CellSummary) -> str:
    return "" if math.isnan(c.seconds) else f"{c.seconds:.0f}"
