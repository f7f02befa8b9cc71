"""Which runs a table needs: a cell for each row and column, a job for each cell and seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from promptcal.config import Config
from promptcal.errors import ConfigError, PromptCALError
from promptcal.experiments.definition import Column, Row, Scale, Table
from promptcal.experiments.efficiency import EfficiencyJob
from promptcal.experiments.jobs import FitJob, Job, StoredJob
from promptcal.experiments.records import read_record
from promptcal.methods import METHODS


@dataclass(frozen=True)
class Cell:
    """A row in a column; without jobs where there are published values only."""

    row: Row
    column: Column
    score: str
    jobs: tuple[Job, ...]


def plan(
    table: Table, scale: Scale, seeds: Sequence[int], settings: Sequence[str] = (), device: str | None = None
) -> list[Cell]:
    """The cells of a table, row by row. ``settings`` apply to all rows that have them; a row's own have priority."""
    cells = []
    for row in table.at(scale).rows:
        applied = [s for s in settings if row.label not in rows_without(table.at(scale), s)]
        for column in table.columns:
            if table.has_cell(row, column):
                try:
                    jobs = _jobs(table, row, column, scale, seeds, applied, device)
                except PromptCALError as error:
                    place = f"table {table.name}, row {row.label!r}, column {column.title!r}"
                    raise ConfigError(f"{place}: {error}") from error
                cells.append(Cell(row, column, row.score or column.score, tuple(jobs)))
    return cells


def _jobs(
    table: Table,
    row: Row,
    column: Column,
    scale: Scale,
    seeds: Sequence[int],
    settings: Sequence[str],
    device: str | None,
) -> list[Job]:
    names = row.records_in(column)
    jobs: list[Job] = [StoredJob(name, read_record(table.record_folder, name)) for name in names]
    for seed in seeds:
        if table.kind == "efficiency":
            jobs.append(EfficiencyJob(column.backbone_at(scale), row.prompts, seed, tuple(settings), device))
        elif row.method is not None:
            overrides = (*settings, *row.overrides)
            jobs.append(FitJob(column.benchmark_at(scale), row.method, seed, overrides, row.weights))
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
    wanted = [cell for cell in cells if labels is None or cell.row.label in labels]
    most = max((len(cell.jobs) for cell in wanted), default=0)
    in_order = [cell.jobs[i] for i in range(most) for cell in wanted if i < len(cell.jobs)]
    return list({job.name: job for job in in_order}.values())
