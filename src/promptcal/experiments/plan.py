"""Which runs a table needs: a cell for each row and column, a job for each cell and seed, shared where they agree."""

from collections.abc import Sequence
from dataclasses import dataclass

from promptcal.experiments.definition import Column, Row, Scale, Table
from promptcal.experiments.efficiency import EfficiencyJob
from promptcal.experiments.jobs import FitJob, Job, Stage


@dataclass(frozen=True)
class Cell:
    """Where a row and a column meet; no jobs where there are published figures only."""

    row: Row
    column: Column
    stage: Stage
    jobs: tuple[Job, ...]


def plan(
    table: Table, scale: Scale, seeds: Sequence[int], settings: Sequence[str] = (), device: str | None = None
) -> list[Cell]:
    """The cells of a table, row by row."""
    return [
        Cell(
            row,
            column,
            row.stage or column.stage,
            tuple(_job(table, row, column, scale, seed, settings, device) for seed in seeds)
            if row.method is not None or table.kind == "efficiency"
            else (),
        )
        for row in table.at(scale).rows
        for column in table.columns
        if table.has_cell(row, column)
    ]


def _job(
    table: Table, row: Row, column: Column, scale: Scale, seed: int, settings: Sequence[str], device: str | None
) -> Job:
    if table.kind == "efficiency":
        return EfficiencyJob(column.backbone_at(scale), row.prompts, seed, tuple(settings), device)
    assert row.method is not None
    overrides = (*settings, *row.overrides)  # what a row is about stays
    return FitJob(column.benchmark_at(scale), row.method, seed, overrides, row.weights)


def jobs_of(cells: Sequence[Cell], labels: Sequence[str] | None = None) -> list[Job]:
    """Each job once, seed by seed so that the first seed's figures come first; of these rows only, if given."""
    wanted = [cell for cell in cells if labels is None or cell.row.label in labels]
    most = max((len(cell.jobs) for cell in wanted), default=0)
    in_order = [cell.jobs[i] for i in range(most) for cell in wanted if i < len(cell.jobs)]
    return list({job.name: job for job in in_order}.values())
