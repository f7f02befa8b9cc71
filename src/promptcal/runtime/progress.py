"""The progress bar that every slow step shows: on a terminal, in a notebook, and as lines for another program."""

import html
import io
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINES_VARIABLE = "PROMPTCAL_PROGRESS_LINES"  # if it is set, progress is printed as lines
_SECONDS_BETWEEN_UPDATES = 0.2
_WIDTH = 110  # characters
_NARROW = 100  # characters of a terminal in which a short bar and no elapsed time leave room for the rest


def progress_bar(console: Console) -> Progress:
    kind = LineProgress if os.environ.get(LINES_VARIABLE) else NotebookProgress if console.is_jupyter else Progress
    is_narrow = console.width < _NARROW
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=6 if is_narrow else 16),
        MofNCompleteColumn(),
        *(() if is_narrow else (TimeElapsedColumn(),)),
        TimeRemainingColumn(),
        TextColumn("left  {task.fields[note]}"),
    )
    return kind(*columns, console=console)


@contextmanager
def show_progress(console: Console, step: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar of one step. It yields a function of what is done of ``total`` (None: not known)."""
    with progress_bar(console) as bar:
        task = bar.add_task(step, total=total, note="")
        yield lambda done: bar.update(task, completed=done)


def working(console: Console, step: str) -> AbstractContextManager[Any]:
    """Shows that a step of unknown length is running."""
    if not console.is_jupyter:
        return console.status(step)
    console.print(f"{step} ...", markup=False, highlight=False)
    return nullcontext()


class DrawnProgress(Progress):
    """A progress that rich does not draw by itself: `refresh` shows it, a few times a second at most."""

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        super().__init__(*columns, console=console, auto_refresh=False)
        self._updated = -math.inf

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.refresh()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._refresh_if_due()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._refresh_if_due()

    def _refresh_if_due(self) -> None:
        if time.monotonic() - self._updated >= _SECONDS_BETWEEN_UPDATES:
            self._updated = time.monotonic()
            self.refresh()


class LineProgress(DrawnProgress):
    """Prints lines such as "embedding images: 512 of 2000", for a program that reads them."""

    def refresh(self) -> None:
        for task in self.tasks:
            if task.total and not task.fields.get("is_reported"):
                note = f", {task.fields['note']}" if task.fields.get("note") else ""
                line = f"{task.description}: {int(task.completed)} of {int(task.total)}{note}"
                self.console.print(line, markup=False, highlight=False, soft_wrap=True)
                task.fields["is_reported"] = task.completed >= task.total


class NotebookProgress(DrawnProgress):
    """Updates one output of a notebook's cell. IPython is enough for this, while rich needs ipywidgets."""

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        super().__init__(*columns, console=console)
        self._output: Any = None

    def start(self) -> None:
        if self._output is None and not self.console.quiet:
            from IPython.display import display

            self._output = display(self._content(), raw=True, display_id=True)

    def refresh(self) -> None:
        if self._output is not None:
            self._output.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        """The bars in the formats that a notebook shows."""
        page = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, force_terminal=False, color_system=None)
        with page.capture() as captured:
            page.print(self.get_renderable())
        text = captured.get().rstrip()
        return {"text/plain": text, "text/html": f'<pre style="margin: 0">{html.escape(text)}</pre>'}
