"""A table from its name to its report: plan, run what is missing, summarise, write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcal.errors import ConfigError
from promptcal.experiments import table_report as report
from promptcal.experiments.definition import NAMES, Epoch, Scale, Table, chosen_rows, load_table
from promptcal.experiments.jobs import Job, RunOptions, State, short_hash
from promptcal.experiments.plan import jobs_of, plan
from promptcal.experiments.runner import run_missing, states_of
from promptcal.experiments.summary import Summary, summarise
from promptcal.runtime import files

REPORTS = "reports"  # folder below the output


@dataclass(frozen=True)
class TableReport:
    """A table as far as its runs are finished, and where it was written."""

    summary: Summary
    where: RunOptions
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


def make_table(
    name: str,
    *,
    where: RunOptions,
    seeds: Sequence[int] = (0, 1, 2),
    scale: Scale = "full",
    epoch: Epoch = "selected",
    settings: Sequence[str] = (),
    rows: Sequence[str] = (),
    run: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> TableReport:
    """Run what the table lacks (of these ``rows``, if any are given) and report all of it."""
    table = load_table(name).at(scale)
    checked = check_seeds(seeds)
    cells = plan(table, scale, checked, settings, where.device)
    labels = [row.label for row in chosen_rows(table, list(rows))] if rows else None
    states = states_of(jobs_of(cells), where)
    if run:
        states |= run_missing(jobs_of(cells, labels), where, say)
    summary = summarise(table, scale, epoch, checked, settings, cells, states, where)
    return _write(summary, where)


def planned(
    name: str,
    *,
    where: RunOptions,
    seeds: Sequence[int] = (0, 1, 2),
    scale: Scale = "full",
    settings: Sequence[str] = (),
    rows: Sequence[str] = (),
) -> list[tuple[Job, State]]:
    """Each run that `make_table` would need, and where it stands."""
    table = load_table(name).at(scale)
    labels = [row.label for row in chosen_rows(table, list(rows))] if rows else None
    jobs = jobs_of(plan(table, scale, check_seeds(seeds), settings, where.device), labels)
    return [(job, job.state(where)) for job in jobs]


def list_tables(
    *, where: RunOptions, seeds: Sequence[int] = (0, 1, 2), scale: Scale = "full", settings: Sequence[str] = ()
) -> list[TableListing]:
    listed = []
    for name in NAMES:
        runs = planned(name, where=where, seeds=seeds, scale=scale, settings=settings)
        listed.append(TableListing(load_table(name), len(runs), sum(s.name == "finished" for _, s in runs)))
    return listed


def check_seeds(seeds: Sequence[int]) -> list[int]:
    if not seeds or min(seeds) < 0:
        raise ConfigError("give at least one seed, and none below 0, such as --seeds 0 1 2")
    return list(dict.fromkeys(seeds))


def _write(summary: Summary, where: RunOptions) -> TableReport:
    folder = where.output / REPORTS
    folder.mkdir(parents=True, exist_ok=True)
    stem = _stem(summary)
    written = TableReport(
        summary,
        where,
        folder / f"{stem}.csv",
        folder / f"{stem}-runs.csv",
        folder / f"{stem}.md",
        folder / f"{stem}.png",
    )
    files.write_text(written.csv, report.csv_text(summary))
    files.write_text(written.runs_csv, report.runs_csv_text(summary))
    files.write_text(written.markdown, report.markdown(summary, where))
    from promptcal.experiments.plot import write_plot  # its import takes a while

    write_plot(summary, written.plot)
    return written


def _stem(summary: Summary) -> str:
    """``generic``, ``generic-mini``, ``generic-last``, and with settings of one's own ``generic-mini-1a2b3c4d``."""
    parts = [summary.table.name]
    parts += ["mini"] if summary.scale == "mini" else []
    parts += ["last"] if summary.epoch == "last" else []
    parts += [short_hash(summary.settings)] if summary.settings else []
    return "-".join(parts)
