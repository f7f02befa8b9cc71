"""Which runs a table needs: a cell for each row and column, a job for each cell and seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from promptcal.config import Config
from promptcal.errors import ConfigError, PromptCALError
from promptcal.experiments.definition import Column, Row, Table
from promptcal.experiments.efficiency import EfficiencyJob
from promptcal.experiments.jobs import FitJob, StoredJob
from promptcal.experiments.records import read_record
from promptcal.experiments.request import TableRequest
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
