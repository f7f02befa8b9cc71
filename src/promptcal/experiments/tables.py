"""A table from its definition to its report: plan, run what is missing, summarise, write."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from promptcal.errors import ConfigError
from promptcal.experiments import table_report as report
from promptcal.experiments.definition import Epoch, Scale, Table, chosen_rows, load_table, table_names
from promptcal.experiments.jobs import Job, RunOptions, State, short_hash
from promptcal.experiments.plan import Cell, jobs_of, plan
from promptcal.experiments.runner import run_missing, states_of
from promptcal.experiments.summary import Summary, summarise
from promptcal.pipeline.request import PathOrText, option
from promptcal.runtime import files

# ruff: noqa: RUF009 - `option` returns a dataclass field

REPORTS = "reports"  # folder below the output
PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """Everything that a call of `promptcal table` asks for."""

    name: str = option("", help="A table that `tables` lists, or a YAML file that defines one.")
    output: PathOrText = option("runs/tables", help="Folder of the runs, which tables share, and of the reports.")
    seeds: Sequence[int] = option((0, 1, 2), help="A run for each; mean and deviation are over them.")
    scale: Scale = option("full", help="full, or mini for the included images and backbone.")
    epoch: Epoch = option("selected", help="Report the selected or the last epoch. The CSV has both.")
    rows: Sequence[str] = option((), help="Labels of the rows to run, or parts of them. Default: all.")
    root: PathOrText | None = option(help="Folder with the datasets. Default: PROMPTCAL_DATA, or ./data.")
    device: str | None = option(help="auto, cpu, cuda or mps.")
    overrides: Sequence[str] = option(
        (), help="Settings as ``a.b=value`` for all rows whose method has them; a row's own have priority."
    )
    run: bool = option(True, help="Whether to run anything; if not, the report is of the finished runs.")
    download: bool = option(False, help="Download datasets that are missing.")
    progress: bool = option(True, help="Show progress.")

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise ConfigError(f"there is no scale {self.scale!r}; choose full or mini")
        if self.epoch not in get_args(Epoch):
            raise ConfigError(f"there is no epoch {self.epoch!r} to report; choose selected or last")
        if not self.seeds or min(self.seeds) < 0:
            raise ConfigError("give at least one seed, and no seed below 0, such as --seeds 0 1 2")

    @property
    def options(self) -> RunOptions:
        root = None if self.root is None else Path(self.root)
        return RunOptions(Path(self.output), root, self.device, self.download, self.progress)

    @property
    def unique_seeds(self) -> list[int]:
        return list(dict.fromkeys(self.seeds))

    def cells(self, table: Table) -> list[Cell]:
        return plan(table, self.scale, self.unique_seeds, self.overrides, self.device)

    def jobs(self, table: Table) -> list[Job]:
        """The runs of the rows that are asked for."""
        labels = [row.label for row in chosen_rows(table.at(self.scale), list(self.rows))] if self.rows else None
        return jobs_of(self.cells(table), labels)


@dataclass(frozen=True)
class TableReport:
    """A table with the runs that are finished, and the files it was written to."""

    summary: Summary
    csv: Path
    runs_csv: Path
    markdown: Path
    plot: Path


@dataclass(frozen=True)
class TableListing:
    """A table as `promptcal table --list` shows it."""

    table: Table
    n_runs: int
    n_finished: int


def make_table(request: TableRequest) -> TableReport:
    """Run what the table lacks, summarise all rows and write the report."""
    return _write(make_summary(load_table(request.name), request), request)


def make_summary(table: Table, request: TableRequest) -> Summary:
    """Run what the table lacks (only in the rows of the request, if it names some) and summarise all rows."""
    console = Console(stderr=True, quiet=not request.progress)
    table, cells = table.at(request.scale), request.cells(table)
    jobs, options = request.jobs(table), request.options
    states = states_of(jobs_of(cells), options)
    if request.run:
        states |= run_missing(jobs, options, lambda message: console.print(message, **PLAIN))
    return summarise(
        table, request.scale, request.epoch, request.unique_seeds, request.overrides, cells, states, options
    )


def planned(request: TableRequest) -> list[tuple[Job, State]]:
    """Each run that `make_table` needs, and its state."""
    return [(job, job.state(request.options)) for job in request.jobs(load_table(request.name))]


def list_tables(request: TableRequest) -> list[TableListing]:
    listed = []
    for name in table_names():
        states = [state for _, state in planned(replace(request, name=name))]
        listed.append(TableListing(load_table(name), len(states), sum(s.name == "finished" for s in states)))
    return listed


def _write(summary: Summary, request: TableRequest) -> TableReport:
    folder = request.options.output / REPORTS
    folder.mkdir(parents=True, exist_ok=True)
    stem = _stem(summary)
    written = TableReport(
        summary,
        folder / f"{stem}.csv",
        folder / f"{stem}-runs.csv",
        folder / f"{stem}.md",
        folder / f"{stem}.png",
    )
    files.write_text(written.csv, report.csv_text(summary))
    files.write_text(written.runs_csv, report.runs_csv_text(summary))
    files.write_text(written.markdown, report.markdown(summary))
    from promptcal.experiments.plot import write_plot  # imports matplotlib, which takes a while

    write_plot(summary, written.plot)
    return written


def _stem(summary: Summary) -> str:
    """``generic``, ``generic-mini``, ``generic-last``, and with common settings ``generic-mini-1a2b3c4d``."""
    parts = [summary.table.name]
    parts += ["mini"] if summary.scale == "mini" else []
    parts += ["last"] if summary.epoch == "last" else []
    parts += [short_hash(summary.settings)] if summary.settings else []
    return "-".join(parts)
