"""The progress bar that every slow step shows."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress_bar(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, TimeRemainingColumn(), TextColumn("left  {task.fields[note]}"), console=console)
