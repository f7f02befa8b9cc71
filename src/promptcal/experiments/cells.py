"""The cells of a table: the runs that a row needs in a column, and the summary of the finished ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from promptcal.config import Config
from promptcal.errors import ConfigError, PromptCALError, RunError
from promptcal.experiments.definition import ACCURACIES, Column, Row, Table
from promptcal.experiments.efficiency import EfficiencyJob, EfficiencyRecord
from promptcal.experiments.intervals import Statistic, paired_difference
from promptcal.experiments.jobs import FitJob, State, StoredJob
from promptcal.experiments.run_records import RunRecord, read_record
from promptcal.experiments.table_request import TableRequest
from promptcal.methods import METHODS
from promptcal.pipeline.published import NO_DISTILLATION

Job = FitJob | StoredJob | EfficiencyJob
_LAST_EPOCH = "the values are of the last epoch, not of the selected one"


@dataclass(frozen=True)
class Cell:
    """A row in a column; without jobs where there are published values only."""

    row: Row
    column: Column
    jobs: tuple[Job, ...]

    @property
    def score(self) -> str:
        return self.row.score or self.column.score


def plan(table: Table, request: TableRequest) -> list[Cell]:
    """The cells of a table at the scale of the request, row by row."""
    cells = []
    for row in table.rows:
        settings = tuple(s for s in request.overrides if row.label not in rows_without(table, s))
        for column in table.columns:
            if table.has_cell(row, column):
                try:
                    cells.append(Cell(row, column, tuple(_jobs(table, row, column, request, settings))))
                except PromptCALError as error:
                    where = f"table {table.name}, row {row.label!r}, column {column.title!r}"
                    raise ConfigError(f"{where}: {error}") from error
    return cells


def _jobs(table: Table, row: Row, column: Column, request: TableRequest, settings: tuple[str, ...]) -> list[Job]:
    names = record_names(row, column, table.record_folder)
    jobs: list[Job] = [StoredJob(name, read_record(table.record_folder, name)) for name in names]
    for seed in request.unique_seeds:
        if table.kind == "efficiency":
            jobs.append(EfficiencyJob(column.backbone, row.prompts, seed, settings, request.device))
        elif row.method is not None:
            images = request.generic_images if METHODS[row.method].uses_generic_images else None
            options = (row.weights, request.kmeans_repeats, request.protocol, None if images is None else str(images))
            jobs.append(FitJob(column.benchmark, row.method, seed, settings, tuple(row.overrides), *options))
    for job in jobs:
        _ = job.name  # reads the settings, so that an error is found before anything runs
    return jobs


def record_names(row: Row, column: Column, folder: Path) -> list[str]:
    """Names of the row's records; a name with ``*`` stands for all records that match, perhaps none yet."""
    found: list[str] = []
    for name in row.records_in(column):
        found += sorted(file.stem for file in folder.glob(f"{name}.json")) if "*" in name else [name]
    return found


def rows_without(table: Table, setting: str) -> list[str]:
    """Labels of the rows that a common setting does not apply to: their method has no such section or variant.

    None if it applies to no row; the config then rejects the setting.
    """
    run = [row for row in table.rows if row.method is not None or table.kind == "efficiency"]
    without = [row.label for row in run if not _applies(row.method, setting)]
    return without if len(without) < len(run) else []


def _applies(method: str | None, setting: str) -> bool:
    key, _, value = setting.partition("=")
    if method is not None and key == "variant":
        return value in METHODS[method].variants
    config = Config if method is None else METHODS[method].config_class
    return key.partition(".")[0] in config.model_fields


def jobs_of(cells: Sequence[Cell], labels: Sequence[str] | None = None) -> list[Job]:
    """Each job once, all rows with the first seed first; of the rows with these labels only, if given."""
    wanted = [cell.jobs for cell in cells if labels is None or cell.row.label in labels]
    by_seed = [job for jobs in zip_longest(*wanted) for job in jobs if job is not None]
    return list({job.name: job for job in by_seed}.values())


@dataclass(frozen=True)
class EpochSummary:
    """Values with the weights of one epoch, by part: the mean over seeds, and the difference to the reference.

    A seed's value is the mean over its repeats of k-means. Parts that were not measured are left out.
    """

    means: dict[str, Statistic]
    to_reference: dict[str, Statistic]


@dataclass(frozen=True)
class CellSummary:
    """A cell with its values by part; parts that were not measured or published are left out.

    ``shown`` are the values of the selected or of the last epoch, as the column or the call says, and ``to_reference``
    their paired differences to the reference row. ``difference`` is to the published values; it is empty if the runs
    do not meet the conditions of these (``unmet``).
    """

    cell: Cell
    records: dict[str, RunRecord | EfficiencyRecord]  # of the finished runs, by name
    states: tuple[State, ...]  # of all its runs
    selected: EpochSummary
    last: EpochSummary
    epoch: EpochSummary
    published: dict[str, float]
    difference: dict[str, float]
    unmet: tuple[str, ...]

    @property
    def shown(self) -> dict[str, Statistic]:
        return self.epoch.means

    @property
    def to_reference(self) -> dict[str, Statistic]:
        return self.epoch.to_reference

    @property
    def lacks_distillation(self) -> bool:
        """Whether trained weights were made without the distillation of the published protocol."""
        return NO_DISTILLATION in self.unmet and not self._is_of_frozen_backbone

    @property
    def method_titles(self) -> list[str]:
        """The methods of the runs whose trained weights are scored; one that is not installed has its name."""
        names = dict.fromkeys(job.method for job in self.cell.jobs if not isinstance(job, EfficiencyJob))
        return [] if self._is_of_frozen_backbone else [METHODS[n].title if n in METHODS else n for n in names]

    @property
    def _is_of_frozen_backbone(self) -> bool:
        return any(isinstance(r, RunRecord) and self.cell.score in r.baselines for r in self.records.values())

    @property
    def seeds(self) -> list[int]:
        return [job.seed for job in self.cell.jobs if job.name in self.records]

    @property
    def seconds(self) -> float:
        """Mean over the runs."""
        return fmean(r.seconds for r in self.records.values()) if self.records else math.nan

    @property
    def status(self) -> str:
        """What to show where there are no values, or how many seeds are finished."""
        if not self.cell.jobs:
            return "not measured" if self.cell.row.records_in(self.cell.column) else "published only"
        names = {state.name for state in self.states}
        for worst in ("failed", "damaged", "data absent", "interrupted", "missing"):
            if worst in names:
                word = "not run" if worst == "missing" else worst
                return f"{word} ({len(self.records)} of {len(self.states)} seeds)" if self.records else word
        return "finished"


@dataclass(frozen=True)
class Summary:
    """A table at the scale of the request; ``reference`` is the label of the row that the others are compared with."""

    table: Table
    request: TableRequest
    reference: str | None
    cells: list[CellSummary]

    @property
    def problems(self) -> dict[str, State]:
        """Runs that failed, are damaged or lack their data, by name."""
        pairs = [(job.name, state) for c in self.cells for job, state in zip(c.cell.jobs, c.states, strict=True)]
        return {name: state for name, state in pairs if state.name in ("failed", "damaged", "data absent")}


@dataclass(frozen=True)
class _CellRuns:
    """The runs of a cell: states of all, records of the finished ones and their values by part and seed."""

    cell: Cell
    records: dict[str, RunRecord | EfficiencyRecord]
    states: tuple[State, ...]
    selected: dict[str, dict[int, float]]
    last: dict[str, dict[int, float]]


def summarise(table: Table, request: TableRequest, cells: Sequence[Cell], states: dict[str, State]) -> Summary:
    reference = table.reference_label(request.reference)
    found = [_read_runs(table, request, cell, states) for cell in cells]
    compared_with = {runs.cell.column.title: runs for runs in found if runs.cell.row.label == reference}
    summaries = [_summarise_cell(table, request, runs, compared_with.get(runs.cell.column.title)) for runs in found]
    return Summary(table, request, reference, summaries)


def _read_runs(table: Table, request: TableRequest, cell: Cell, states: dict[str, State]) -> _CellRuns:
    records, selected, last = {}, [], []
    cell_states: list[State] = []
    for job in cell.jobs:
        state = states[job.name]
        if state.name == "finished":
            try:
                record = job.record(request)
                values = record.values_of(cell.score)
                selected.append((job.seed, values.selected))
                last.append((job.seed, values.last))
                records[job.name] = record
            except RunError as error:  # finished, but without the score of this cell
                state = State("damaged", str(error))
        cell_states.append(state)
    parts = table.measured_parts
    return _CellRuns(cell, records, tuple(cell_states), _by_seed(parts, selected), _by_seed(parts, last))


def _by_seed(parts: Sequence[str], runs: Sequence[tuple[int, dict[str, float]]]) -> dict[str, dict[int, float]]:
    """The values by part and seed, for the parts that all runs have; runs with the same seed are averaged."""
    seeds = dict.fromkeys(seed for seed, _ in runs)
    return {
        part: {seed: fmean(values[part] for of, values in runs if of == seed) for seed in seeds}
        for part in parts
        if runs and all(part in values for _, values in runs)
    }


def _summarise_cell(table: Table, request: TableRequest, runs: _CellRuns, reference: _CellRuns | None) -> CellSummary:
    cell, other = runs.cell, None if reference is runs else reference
    selected = _summarise_epoch(runs.selected, {} if other is None else other.selected)
    last = _summarise_epoch(runs.last, {} if other is None else other.last)
    shows_last = (cell.column.epoch or request.epoch) == "last" and table.kind == "accuracy"
    epoch = last if shows_last else selected
    given = cell.row.published.get(cell.column.title, [])
    published = {part: value for part, value in zip(table.parts, given, strict=False) if value is not None}
    unmet = tuple(dict.fromkeys(condition for job in cell.jobs for condition in job.unmet_conditions(request)))
    if shows_last and last.means and runs.last != runs.selected:
        unmet = (*unmet, _LAST_EPOCH)
    is_comparable = request.scale == "full" and not unmet
    comparable = [p for p in (*ACCURACIES, "gflops") if is_comparable and p in epoch.means and p in published]
    difference = {p: epoch.means[p].mean - published[p] for p in comparable}
    return CellSummary(cell, runs.records, runs.states, selected, last, epoch, published, difference, unmet)


def _summarise_epoch(values: dict[str, dict[int, float]], reference: dict[str, dict[int, float]]) -> EpochSummary:
    means = {part: Statistic.of(list(by_seed.values())) for part, by_seed in values.items()}
    found = {part: paired_difference(by_seed, reference.get(part, {})) for part, by_seed in values.items()}
    to_reference = {part: difference for part, difference in found.items() if difference is not None}
    return EpochSummary(means, to_reference)
