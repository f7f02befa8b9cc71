"""The findings of `check` on the terminal."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from promptcal.data.check import CheckReport, Finding

_MAX_CLASSES = 40
_MAX_CASES = 5
_MAX_CASE_LENGTH = 400


def check_report(report: CheckReport) -> Iterator[RenderableType]:
    """Counts by class, then problems and warnings, then a summary."""
    yield _counts(report)
    problems, warnings = report.problems, report.warnings
    yield from (_lines("[red]problem[/]", finding) for finding in problems)
    yield from (_lines("[yellow]warning[/]", finding) for finding in warnings)
    if report.unreadable:
        yield "Files that cannot be read stop a fit: remove them, or add --skip-unreadable to it"
    if problems or warnings:
        yield f"Kinds of problem: {len(problems)}; kinds of warning: {len(warnings)}"
    else:
        yield "Nothing wrong was found"


def _counts(report: CheckReport) -> Table:
    table = Table("class")
    table.add_column("images", justify="right")
    for name, count in _shown(sorted(report.labelled.items(), key=lambda item: -item[1])):
        table.add_row(escape(name), count)
    table.add_section()
    table.add_row("[italic]unlabelled[/]", str(report.n_unlabelled))
    table.add_row("[italic]unreadable[/]", str(len(report.unreadable)))
    table.add_row("[italic]all images[/]", str(report.n_images))
    return table


def _shown(classes: list[tuple[str, int]]) -> Iterable[tuple[str, str]]:
    """All classes, or the largest and the smallest if there are too many for a screen."""
    rows = [(name, str(count)) for name, count in classes]
    if len(rows) <= _MAX_CLASSES:
        return rows
    half = _MAX_CLASSES // 2
    return [*rows[:half], (f"... {len(rows) - 2 * half} classes between ...", ""), *rows[-half:]]


def _lines(kind: str, finding: Finding) -> str:
    cases = [escape(_cut(case)) for case in finding.cases[:_MAX_CASES]]
    left = len(finding.cases) - len(cases)
    more = [f"... and {left} more; --json FILE lists all"] if left else []
    amount = f" ({finding.amount})" if finding.amount else ""
    return "\n  ".join([f"{kind}: {finding.what}{amount}", *cases, *more])


def _cut(case: str) -> str:
    return case if len(case) <= _MAX_CASE_LENGTH else f"{case[:_MAX_CASE_LENGTH]} ..."
