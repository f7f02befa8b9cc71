"""A table from its definition to its report: plan, run what is missing, summarise, write."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from promptcal.errors import Interrupted, PromptCALError
from promptcal.experiments import table_report
from promptcal.experiments.cells import Cell, Job, Summary, jobs_of, plan, summarise
from promptcal.experiments.definition import Table, chosen_rows, load_table, table_names
from promptcal.experiments.jobs import State
from promptcal.experiments.run_records import short_hash
from promptcal.experiments.table_request import TableRequest
from promptcal.runtime import files


@dataclass(frozen=True)
class TableReport:
    """A table with the runs that are finished, and the files it was written to."""

    summary: Summary
    csv: Path
    runs_csv: Path
    markdown: Path
    plot: Path

    def __repr__(self) -> str:
        return f"TableReport({self.summary.table.name!r}, {str(self.csv)!r})"


def make_table(request: TableRequest) -> TableReport:
    """Run what the table lacks, summarise all rows and write the report."""
    return _write(make_summary(load_table(request.name), request))


def make_summary(table: Table, request: TableRequest) -> Summary:
    """Run what the table lacks (only in the rows of the request, if it names some) and summarise all rows."""
    table = table.at(request.scale)
    table.reference_label(request.reference)  # an unknown label is found before anything runs
    cells = plan(table, request)
    wanted = _wanted_jobs(table, cells, request)
    states = {job.name: job.state(request) for job in jobs_of(cells)}
    if request.run:
        states |= run_missing(wanted, states, request)
    return summarise(table, request, cells, states)


def planned(request: TableRequest) -> list[tuple[Job, State]]:
    """Each run that `make_table` needs, and its state."""
    table = load_table(request.name).at(request.scale)
    return [(job, job.state(request)) for job in _wanted_jobs(table, plan(table, request), request)]


def list_tables(request: TableRequest) -> dict[str, list[State]]:
    """The states of the runs of each table of the package."""
    return {name: [state for _, state in planned(replace(request, name=name))] for name in table_names()}


def _wanted_jobs(table: Table, cells: Sequence[Cell], request: TableRequest) -> list[Job]:
    return jobs_of(cells, [row.label for row in chosen_rows(table, request.rows)] if request.rows else None)


def run_missing(jobs: Sequence[Job], states: dict[str, State], request: TableRequest) -> dict[str, State]:
    """Run or resume every job that is missing or interrupted; returns their states afterwards.

    A run that fails does not stop the others. Ctrl-C stops the current run; the next call continues there.
    """
    console = Console(stderr=True, quiet=not request.progress, markup=False, highlight=False, soft_wrap=True)
    to_do = [job for job in jobs if states[job.name].name in ("missing", "interrupted")]
    after: dict[str, State] = {}
    for number, job in enumerate(to_do, start=1):
        resuming = "resuming " if states[job.name].name == "interrupted" else ""
        console.print(f"[{number}/{len(to_do)}] {resuming}{job.name}")
        files.make_folder(request.folder)
        try:
            job.run(request)
            after[job.name] = job.state(request)
        except (Interrupted, KeyboardInterrupt) as stopped:
            done = f"{number - 1} of {len(to_do)} runs done"
            message = f"stopped in {job.name} ({done}); run the same command to continue"
            raise Interrupted(message, getattr(stopped, "exit_code", 130)) from stopped
        except PromptCALError as error:
            after[job.name] = State("failed", str(error))
        except Exception as error:  # the other runs do not depend on this one
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            after[job.name] = State("failed", f"{reason}; see {_write_traceback(job, request)}")
        if after[job.name].name == "failed":
            console.print(f"  failed: {after[job.name].reason}")
    return after


def _write_traceback(job: Job, request: TableRequest) -> Path:
    file = request.folder / "failures" / f"{job.name}.txt"
    files.check_no_link(file.parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(file, traceback.format_exc())
    return file


def _write(summary: Summary) -> TableReport:
    """Write ``NAME.csv`` and so on; NAME ends in ``-mini``, ``-published``, ``-last`` and a hash of common settings."""
    request = summary.request
    suffixes = {
        "mini": request.scale == "mini",
        "published": request.protocol == "published",
        "last": request.epoch == "last",
    }
    stem = "-".join([summary.table.name, *(suffix for suffix, is_needed in suffixes.items() if is_needed)])
    stem += f"-{short_hash(list(request.overrides))}" if request.overrides else ""
    folder = request.folder / "reports"
    files.check_no_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / f"{stem}{end}" for end in (".csv", "-runs.csv", ".md", ".png"))
    written = TableReport(summary, *paths)
    files.write_text(written.csv, table_report.summary_csv(summary))
    files.write_text(written.runs_csv, table_report.runs_csv(summary))
    files.write_text(written.markdown, table_report.markdown(summary))
    from promptcal.experiments.plot import write_plot  # imports matplotlib, which takes a while

    write_plot(summary, written.plot)
    return written
