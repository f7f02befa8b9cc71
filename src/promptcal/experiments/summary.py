"""From finished runs to figures: mean and standard deviation over seeds, beside what was published."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptcal.errors import RunError
from promptcal.experiments.definition import ACCURACIES, Epoch, Scale, Table
from promptcal.experiments.jobs import Outcome, RunOptions, State
from promptcal.experiments.plan import Cell


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
    """A cell with its figures by part; parts that were not measured or published are left out.

    ``shown`` are the selected or the last epoch's figures, whichever the table is asked for.
    """

    cell: Cell
    outcomes: dict[int, Outcome]  # by seed, of the finished runs
    states: tuple[State, ...]  # of its runs, one a seed
    selected: dict[str, Statistic]
    last: dict[str, Statistic]
    shown: dict[str, Statistic]
    published: dict[str, float]
    difference: dict[str, float]

    @property
    def seconds(self) -> float:
        """Of a run, on average."""
        return float(np.mean([o.seconds for o in self.outcomes.values()])) if self.outcomes else math.nan

    @property
    def status(self) -> str:
        """What stands where no figure stands, or how far the seeds have come."""
        if not self.cell.jobs:
            return "published only"
        names = {state.name for state in self.states}
        for worst in ("failed", "damaged", "data absent", "interrupted", "missing"):
            if worst in names:
                word = "not run" if worst == "missing" else worst
                return f"{word} ({len(self.outcomes)} of {len(self.states)} seeds)" if self.outcomes else word
        return "finished"


@dataclass(frozen=True)
class Summary:
    """A whole table at a scale."""

    table: Table
    scale: Scale
    epoch: Epoch
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    cells: list[CellSummary]

    @property
    def complete(self) -> bool:
        return all(c.status in ("finished", "published only") for c in self.cells)

    @property
    def troubles(self) -> dict[str, State]:
        """Runs that failed, are damaged or lack their data, by name."""
        pairs = [(job.name, state) for c in self.cells for job, state in zip(c.cell.jobs, c.states, strict=True)]
        return {name: state for name, state in pairs if state.name in ("failed", "damaged", "data absent")}


def summarise(
    table: Table,
    scale: Scale,
    epoch: Epoch,
    seeds: Sequence[int],
    settings: Sequence[str],
    cells: Sequence[Cell],
    states: dict[str, State],
    where: RunOptions,
) -> Summary:
    summaries = [_summarise_cell(table, scale, epoch, cell, states, where) for cell in cells]
    return Summary(table, scale, epoch, tuple(seeds), tuple(settings), summaries)


def _summarise_cell(
    table: Table, scale: Scale, epoch: Epoch, cell: Cell, states: dict[str, State], where: RunOptions
) -> CellSummary:
    outcomes: dict[int, Outcome] = {}
    of_jobs: list[State] = []
    for job in cell.jobs:
        state = states[job.name]
        if state.name == "finished":
            try:
                outcomes[job.seed] = job.outcome(where, cell.stage)
            except RunError as error:  # finished, but without the stage this cell is about
                state = State("damaged", str(error))
        of_jobs.append(state)
    selected, last = (
        {
            part: Statistic.of(values)
            for part in table.parts
            if (values := [getattr(o, kind)[part] for o in outcomes.values() if part in getattr(o, kind)])
        }
        for kind in ("selected", "last")
    )
    shown = last if epoch == "last" and table.kind == "accuracy" else selected
    given = cell.row.published.get(cell.column.title, [])
    published = {part: f for part, f in zip(table.parts, given, strict=False) if f is not None}
    comparable = [p for p in (*ACCURACIES, "gflops") if scale == "full" and p in shown and p in published]
    difference = {p: shown[p].mean - published[p] for p in comparable}
    return CellSummary(cell, outcomes, tuple(of_jobs), selected, last, shown, published, difference)
