"""The cells of a table: which runs a row needs in a column, and what the finished ones come to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from promptcal.config import Config
from promptcal.errors import ConfigError, PromptCALError, RunError
from promptcal.experiments.definition import ACCURACIES, Column, Row, Table
from promptcal.experiments.efficiency import EfficiencyJob, EfficiencyRecord
from promptcal.experiments.jobs import FitJob, State, StoredJob
from promptcal.experiments.run_records import RunRecord, read_record
from promptcal.experiments.table_request import TableRequest
from promptcal.methods import METHODS

Job = FitJob | StoredJob | EfficiencyJob


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
                    place = f"table {table.name}, row {row.label!r}, column {column.title!r}"
                    raise ConfigError(f"{place}: {error}") from error
    return cells


def _jobs(table: Table, row: Row, column: Column, request: TableRequest, settings: tuple[str, ...]) -> list[Job]:
    jobs: list[Job] = [StoredJob(name, read_record(table.record_folder, name)) for name in row.records_in(column)]
    for seed in request.unique_seeds:
        if table.kind == "efficiency":
            jobs.append(EfficiencyJob(column.backbone, row.prompts, seed, settings, request.device))
        elif row.method is not None:
            jobs.append(FitJob(column.benchmark, row.method, seed, (*settings, *row.overrides), row.weights))
    for job in jobs:
        _ = job.name  # reads the settings, so that an error is found before anything runs
    return jobs


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
class Statistic:
    """Mean and standard deviation over seeds (n - 1 in the denominator; NaN for one seed)."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Statistic":
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan)


@dataclass(frozen=True)
class CellSummary:
    """A cell with its values by part; parts that were not measured or published are left out.

    ``shown`` are the values of the selected or of the last epoch, as the column or the call says.
    """

    cell: Cell
    records: dict[str, RunRecord | EfficiencyRecord]  # of the finished runs, by name
    states: tuple[State, ...]  # of all its runs
    selected: dict[str, Statistic]
    last: dict[str, Statistic]
    shown: dict[str, Statistic]
    published: dict[str, float]
    difference: dict[str, float]

    @property
    def seeds(self) -> list[int]:
        return [job.seed for job in self.cell.jobs if job.name in self.records]

    @property
    def seconds(self) -> float:
        """Mean over the runs."""
        return float(np.mean([r.seconds for r in self.records.values()])) if self.records else math.nan

    @property
    def status(self) -> str:
        """What to show where there are no values, or how many seeds are finished."""
        if not self.cell.jobs:
            return "published only"
        names = {state.name for state in self.states}
        for worst in ("failed", "damaged", "data absent", "interrupted", "missing"):
            if worst in names:
                word = "not run" if worst == "missing" else worst
                return f"{word} ({len(self.records)} of {len(self.states)} seeds)" if self.records else word
        return "finished"


@dataclass(frozen=True)
class Summary:
    """A table at the scale of the request."""

    table: Table
    request: TableRequest
    cells: list[CellSummary]

    @property
    def complete(self) -> bool:
        return all(c.status in ("finished", "published only") for c in self.cells)

    @property
    def problems(self) -> dict[str, State]:
        """Runs that failed, are damaged or lack their data, by name."""
        pairs = [(job.name, state) for c in self.cells for job, state in zip(c.cell.jobs, c.states, strict=True)]
        return {name: state for name, state in pairs if state.name in ("failed", "damaged", "data absent")}


def summarise_cell(table: Table, request: TableRequest, cell: Cell, states: dict[str, State]) -> CellSummary:
    records, outcomes = {}, []
    cell_states: list[State] = []
    for job in cell.jobs:
        state = states[job.name]
        if state.name == "finished":
            try:
                record = job.record(request)
                outcomes.append(record.outcome(cell.score))
                records[job.name] = record
            except RunError as error:  # finished, but without the score of this cell
                state = State("damaged", str(error))
        cell_states.append(state)
    selected = _statistics(table.parts, [outcome.selected for outcome in outcomes])
    last = _statistics(table.parts, [outcome.last for outcome in outcomes])
    epoch = cell.column.epoch or request.epoch
    shown = last if epoch == "last" and table.kind == "accuracy" else selected
    given = cell.row.published.get(cell.column.title, [])
    published = {part: value for part, value in zip(table.parts, given, strict=False) if value is not None}
    comparable = [p for p in (*ACCURACIES, "gflops") if request.scale == "full" and p in shown and p in published]
    difference = {p: shown[p].mean - published[p] for p in comparable}
    return CellSummary(cell, records, tuple(cell_states), selected, last, shown, published, difference)


def _statistics(parts: Sequence[str], runs: Sequence[dict[str, float]]) -> dict[str, Statistic]:
    """By part, for the parts that all runs have."""
    return {part: Statistic.of([run[part] for run in runs]) for part in parts if runs and all(part in r for r in runs)}
