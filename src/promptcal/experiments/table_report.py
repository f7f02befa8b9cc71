"""A summary as Markdown, CSV and terminal output. The same summary always gives the same bytes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from promptcal.experiments.cells import CellSummary, Summary, rows_without
from promptcal.experiments.definition import FINAL, PARTS, PERCENTAGES, Detail
from promptcal.experiments.efficiency import EfficiencyRecord
from promptcal.experiments.intervals import Statistic
from promptcal.experiments.run_records import RunRecord, ScoreValues
from promptcal.pipeline.published import NO_DISTILLATION
from promptcal.runtime import files

_MOST_NAMED = 2  # rows in a note


@dataclass(frozen=True)
class TableSection:
    """One grid of the report: the cells of one column of the table, or of several that are the same runs."""

    title: str
    paper: str  # heading of the published values
    cells: list[CellSummary]


def sections(summary: Summary) -> list[TableSection]:
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
        found.append(TableSection(*names, cells))
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
    if table.kind == "accuracy" and request.protocol == "published":
        lines.append("Published protocol: trained on all labels, epoch selected by each method's own rule.")
    seeds = request.unique_seeds
    repeats = f", {request.kmeans_repeats} k-means repeats each" if table.kind == "accuracy" else ""
    if len(seeds) > 1:
        lines.append(f"Mean and 95 % interval over the seeds {', '.join(map(str, seeds))}{repeats}.")
    else:
        lines.append(f"One seed ({seeds[0]}){repeats}, so there is no interval.")
    if summary.reference is not None:
        lines.append(
            f"Differences to {summary.reference} are paired by seed. A value is bold if the 95 % interval of its "
            "difference excludes zero."
        )
    lines += _incomparable(summary)
    lines += _without_distillation(summary, [c for c in summary.cells if not _has_reasons(summary, c)])
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


def _incomparable(summary: Summary) -> list[str]:
    """Why rows have no difference to their published values; rows are not named if all have the same reasons."""
    by_row: dict[str, list[str]] = {}
    for c in summary.cells:
        if c.cell.jobs and _has_reasons(summary, c):
            by_row.setdefault(c.cell.row.label, []).extend(c.unmet)
    rows_by_reasons: dict[str, list[str]] = {}
    for label, unmet in by_row.items():
        rows_by_reasons.setdefault("; ".join(dict.fromkeys(unmet)), []).append(label)
    sentence = "no difference to the published values is shown"
    if list(rows_by_reasons.values()) == [list(dict.fromkeys(c.cell.row.label for c in summary.cells))]:
        return [f"{sentence.capitalize()}: {reasons}." for reasons in rows_by_reasons if reasons]
    return [f"{', '.join(rows)}: {sentence}: {reasons}." for reasons, rows in rows_by_reasons.items() if reasons]


def _has_reasons(summary: Summary, c: CellSummary) -> bool:
    """Whether the notes say why a cell has no difference to published values; at mini scale the data are others."""
    return summary.request.scale == "full" and bool(c.published)


def _without_distillation(summary: Summary, cells: Sequence[CellSummary]) -> list[str]:
    """A sentence that names the rows of ``cells`` without distillation; many rows are named by their methods."""
    rows = list(dict.fromkeys(c.cell.row.label for c in cells if c.lacks_distillation))
    if not rows:
        return []
    methods = {title for c in cells if c.lacks_distillation for title in c.method_titles}
    of_methods = {c.cell.row.label for c in summary.cells if methods.intersection(c.method_titles)}
    if len(rows) > _MOST_NAMED and of_methods == set(rows):
        return [f"All rows of {' and '.join(sorted(methods))}: {NO_DISTILLATION}."]
    return [f"{', '.join(rows)}: {NO_DISTILLATION}."]


def markdown(summary: Summary) -> str:
    """The report: a table for each section, the notes, and the runs that cannot be used."""
    parts, measured = summary.table.parts, summary.table.measured_parts
    reference = [] if summary.reference is None else [f"difference to {summary.reference}"]
    lines = [f"# {summary.table.title}", ""]
    for section in sections(summary):
        difference = ["difference to the paper"] if any(c.difference for c in section.cells) else []
        head = ["", *(PARTS[part] for part in measured), *reference, section.paper, *difference]
        rows = []
        for c in section.cells:
            values = [_in_bold(c, part, "**", "**") for part in measured] if c.shown else [c.status]
            values += [""] * (len(measured) - len(values))
            values += [_joined([_to_reference(c, part) for part in parts]) for _ in reference]
            published = _joined([_published(c, part) for part in parts])
            differences = [_joined([_difference(c, part) for part in parts]) for _ in difference]
            rows.append([c.cell.row.label, *values, published, *differences, _seeds(c), _seconds(c)])
        head += ["seeds", "seconds per run"]
        lines += [f"## {section.title}", "", markdown_table(head, rows, "--:"), ""]
    lines += [f"- {note}" for note in notes(summary)]
    if summary.problems:
        lines += ["", "Missing runs:", ""]
        lines += [f"- `{name}`: {state.name}. {state.reason}" for name, state in sorted(summary.problems.items())]
    return "\n".join(lines) + "\n"


def compact_markdown(summary: Summary) -> str:
    """One Markdown table for a document: a cell holds the values of all parts, and ``details`` describe the runs.

    With a reference, the difference to it follows each column. A sentence below names the rows without distillation.
    """
    table, reference = summary.table, [] if summary.reference is None else [f"difference to {summary.reference}"]
    head = ["", *(title for column in table.columns for title in (column.title, *reference)), *table.details]
    rows = []
    for row in table.rows:
        cells = {c.cell.column.title: c for c in summary.cells if c.cell.row.label == row.label}
        values: list[str] = []
        for column in table.columns:
            c = cells.get(column.title)
            values.append("" if c is None else _compact(c, table.parts))
            values += ["" if c is None else _joined([_to_reference(c, part) for part in table.parts])] * len(reference)
        shown = next((c for c in cells.values() if c.records), next(iter(cells.values())))
        rows.append([row.label, *values, *(_detail(shown, detail) for detail in table.details)])
    return "\n\n".join([markdown_table(head, rows), *_without_distillation(summary, summary.cells)])


def _compact(c: CellSummary, parts: Sequence[str]) -> str:
    values = _joined([_in_bold(c, part, "**", "**") for part in parts])
    return c.status if not values and c.status == "not measured" else values


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]], align: str = "---") -> str:
    """``align`` is the alignment of all columns but the first."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" + f"|{align}" * (len(head) - 1) + "|", *lines[1:]])


def _detail(c: CellSummary, detail: Detail) -> str:
    """A detail of the runs of a row: their number, epochs, mean time, or the hashes of their settings."""
    records = [record for record in c.records.values() if isinstance(record, RunRecord)]
    if detail == "seeds":
        return str(len(c.records))
    if not records:
        return ""
    first, score = records[0], c.cell.score
    if detail == "minutes":
        return f"{c.seconds / 60:.1f}" if score == FINAL and all(r.has_all_seconds() for r in records) else ""
    if score in first.baselines:
        return ""
    if detail == "epochs":
        stages = [first.stages[score]] if score in first.stages else first.stages.values()
        return " + ".join(str(stage.epochs) for stage in stages)
    return ", ".join(f"`{record.config_hash}`" for record in records)


def show(summary: Summary, console: Console) -> None:
    """Print the tables. The difference to the reference and the published value are below the measured value.

    With more than three parts the interval is below it too, and seeds and seconds are only in the files.
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
        reference = "" if summary.reference is None else f"difference to {summary.reference}; "
        to_paper = ", and the difference to it" if any(c.difference for c in section.cells) else ""
        console.print(f"below each value: {reference}{section.paper}{to_paper}", style="dim", highlight=False)
    if summary.table.measured_parts != parts:
        more = [PARTS[part] for part in summary.table.measured_parts if part not in parts]
        console.print(f"{' and '.join(more)} are in the files.", highlight=False)
    for note in notes(summary):
        console.print(note, markup=False, highlight=False)


def _stacked(c: CellSummary, part: str, plus_minus: str) -> str:
    status = c.status if part in ("all", "gflops") else ""
    measured = _in_bold(c, part, "[bold]", "[/bold]") if c.shown else status
    reference = [_to_reference(c, part)] if part in c.to_reference else []
    paper = " ".join(text for text in (_published(c, part), _difference(c, part)) if text != "-")
    below = "\n".join([*reference, paper])
    return f"{measured}\n[dim]{below}[/dim]".replace(" ± ", plus_minus)


def summary_csv(summary: Summary) -> str:
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
            "reference": summary.reference or "",
            "seeds": " ".join(map(str, c.seeds)),
            "n_seeds": len(c.seeds),
            "kmeans_repeats": _kmeans_repeats(c),
            "status": c.status,
            "seconds": _exact(c.seconds),
            "not_comparable": "; ".join(c.unmet),
        }
        for part in summary.table.measured_parts:
            for name, epoch in (("selected", c.selected), ("last", c.last)):
                found, to_reference = epoch.means.get(part), epoch.to_reference.get(part)
                for what in ("mean", "std", "ci95"):
                    line[f"{part}_{name}_{what}"] = "" if found is None else _exact(getattr(found, what))
                for what in ("mean", "ci95"):
                    value = None if to_reference is None else getattr(to_reference, what)
                    line[f"{part}_{name}_to_reference_{what}"] = _exact(value)
            line[f"{part}_published"] = _exact(c.published.get(part))
            line[f"{part}_difference"] = _exact(c.difference.get(part))
        lines.append(line)
    return files.csv_text(list(lines[0]), [list(line.values()) for line in lines])


def runs_csv(summary: Summary) -> str:
    """One line for each run behind each cell."""
    parts = summary.table.measured_parts
    lines = []
    for c in summary.cells:
        for job, state in zip(c.cell.jobs, c.states, strict=True):
            record = c.records.get(job.name)
            found = ScoreValues({}, {}) if record is None else record.values_of(c.cell.score)
            values = [_exact(epoch.get(part)) for part in parts for epoch in (found.selected, found.last)]
            run = (c.cell.row.label, c.cell.column.title, c.cell.score, job.seed, job.name, state.name)
            lines.append([*run, "" if record is None else _exact(record.seconds), *values])
    head = ["row", "dataset", "score", "seed", "run", "state", "seconds"]
    return files.csv_text([*head, *(f"{part}_{epoch}" for part in parts for epoch in ("selected", "last"))], lines)


def _exact(value: float | None) -> str:
    """A value as text for CSV files; empty if there is none."""
    return "" if value is None or math.isnan(value) else f"{value:.10g}"


def _format(part: str, reference: float, sign: str = "") -> str:
    """One digit after the point for percentages, three significant digits of ``reference`` for other measurements."""
    is_percentage = part in PERCENTAGES or not reference
    return f"{sign}.{1 if is_percentage else max(0, 2 - math.floor(math.log10(abs(reference))))}f"


def _measured(c: CellSummary, part: str) -> str:
    if part not in c.shown:
        return "-"
    return _with_interval(c.shown[part], part)


def _with_interval(found: Statistic, part: str, sign: str = "") -> str:
    mean = format(found.mean, _format(part, found.mean, sign))
    return mean if math.isnan(found.ci95) else f"{mean} ± {format(found.ci95, _format(part, found.mean))}"


def _in_bold(c: CellSummary, part: str, before: str, after: str) -> str:
    """The measured value, in bold if the interval of its difference to the reference excludes zero."""
    is_bold = part in c.to_reference and c.to_reference[part].excludes_zero
    return f"{before}{_measured(c, part)}{after}" if is_bold else _measured(c, part)


def _to_reference(c: CellSummary, part: str) -> str:
    return _with_interval(c.to_reference[part], part, "+") if part in c.to_reference else "-"


def _published(c: CellSummary, part: str) -> str:
    return format(c.published[part], _format(part, c.published[part])) if part in c.published else "-"


def _difference(c: CellSummary, part: str) -> str:
    return format(c.difference[part], _format(part, c.published[part], "+")) if part in c.difference else "-"


def _joined(values: list[str]) -> str:
    """``97.9 / 96.6 / 98.5``, or only the first values if the rest is unknown."""
    while values and values[-1] == "-":
        values = values[:-1]
    return " / ".join(values)


def _kmeans_repeats(c: CellSummary) -> str:
    """How many seeds of k-means the final scores are of; one for a classifier."""
    numbers = {max(1, len(r.selected.repeats)) for r in c.records.values() if isinstance(r, RunRecord)}
    return " ".join(map(str, sorted(numbers)))


def _seeds(c: CellSummary) -> str:
    return f"{len(c.records)} of {len(c.cell.jobs)}" if c.cell.jobs else ""


def _seconds(c: CellSummary) -> str:
    return "" if math.isnan(c.seconds) else f"{c.seconds:.0f}"
