"""From run records to mean, standard deviation and difference to the published values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptcal.errors import RunError
from promptcal.experiments.definition import ACCURACIES, Table
from promptcal.experiments.efficiency import EfficiencyRecord
from promptcal.experiments.jobs import State
from promptcal.experiments.plan import Cell
from promptcal.experiments.records import Outcome, RunRecord
from promptcal.experiments.request import TableRequest


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
    outcomes: dict[str, Outcome]
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


def summarise(table: Table, request: TableRequest, cells: Sequence[Cell], states: dict[str, State]) -> Summary:
    return Summary(table, request, [_summarise_cell(table, request, cell, states) for cell in cells])


def _summarise_cell(table: Table, request: TableRequest, cell: Cell, states: dict[str, State]) -> CellSummary:
    records, outcomes = {}, {}
    cell_states: list[State] = []
    for job in cell.jobs:
        state = states[job.name]
        if state.name == "finished":
            try:
                record = job.record(request)
                outcomes[job.name] = record.outcome(cell.score)
                records[job.name] = record
            except RunError as error:  # finished, but without the score of this cell
                state = State("damaged", str(error))
        cell_states.append(state)
    selected = _statistics(table.parts, [outcome.selected for outcome in outcomes.values()])
    last = _statistics(table.parts, [outcome.last for outcome in outcomes.values()])
    epoch = cell.column.epoch or request.epoch
    shown = last if epoch == "last" and table.kind == "accuracy" else selected
    given = cell.row.published.get(cell.column.title, [])
    published = {part: value for part, value in zip(table.parts, given, strict=False) if value is not None}
    comparable = [p for p in (*ACCURACIES, "gflops") if request.scale == "full" and p in shown and p in published]
    difference = {p: shown[p].mean - published[p] for p in comparable}
    return CellSummary(cell, records, outcomes, tuple(cell_states), selected, last, shown, published, difference)


def _statistics(parts: Sequence[str], runs: Sequence[dict[str, float]]) -> dict[str, Statistic]:
    """By part, for the parts that all runs have."""
    return {part: Statistic.of([run[part] for run in runs]) for part in parts if runs and all(part in r for r in runs)}
