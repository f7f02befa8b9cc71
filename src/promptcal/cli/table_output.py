"""Tables of experiments on the terminal."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from promptcal.experiments.cells import Job
from promptcal.experiments.definition import load_table
from promptcal.experiments.jobs import State
from promptcal.experiments.table_report import show as show_summary
from promptcal.experiments.tables import TableReport


def show_listing(states: dict[str, list[State]], console: Console) -> None:
    view = Table()
    view.add_column("table", no_wrap=True)
    view.add_column("title")
    for column in ("rows", "runs", "finished"):
        view.add_column(column, justify="right")
    for table, of_table in ((load_table(name), of_table) for name, of_table in states.items()):
        counts = (len(table.rows), len(of_table), sum(state.name == "finished" for state in of_table))
        view.add_row(table.name, table.title, *map(str, counts))
    console.print(view)
    console.print("Tables share runs, so several tables need fewer runs than the sum.", highlight=False)


def show_planned_runs(runs: list[tuple[Job, State]], output: Path, console: Console) -> None:
    view = Table()
    view.add_column("run", overflow="fold")
    view.add_column("state", no_wrap=True)
    for job, state in runs:
        view.add_row(escape(job.name), state.name)
    console.print(view)
    counts = Counter(state.name for _, state in runs)
    to_do = counts["missing"] + counts["interrupted"]
    states = ", ".join(f"{n} {name}" for name, n in counts.items())
    console.print(f"{len(runs)} runs in {output}: {states}. {to_do} would run.", markup=False, highlight=False)
    for reason in dict.fromkeys(state.reason for _, state in runs if state.reason):
        console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)


def show_table(made: TableReport, console: Console) -> None:
    show_summary(made.summary, console)
    for file, description in (
        (made.csv, "values of the selected and of the last epoch"),
        (made.runs_csv, "each run"),
        (made.markdown, "this table"),
        (made.plot, "a bar plot"),
    ):
        console.print(f"  {file}  {description}", markup=False, highlight=False, soft_wrap=True)


def show_problems(problems: dict[str, State]) -> None:
    errors = Console(stderr=True, soft_wrap=True)
    for name, state in sorted(problems.items()):
        errors.print(f"promptcal: {name}: {state.name}. {state.reason}", style="red", markup=False, highlight=False)
