"""A table of a document: how much the accuracy of the same weights varies between the repeats of k-means."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from promptcal.data.benchmarks.spec import DEVELOPMENT
from promptcal.experiments.run_records import RunRecord
from promptcal.experiments.table_report import markdown_table

_PARTS = ("all", "known", "new")


def noise_table(benchmarks: Mapping[str, str], records: Sequence[RunRecord]) -> str:
    """A row for the records of all benchmarks whose names begin in the same way.

    Runs on development splits are left out.
    """
    records = [record for record in records if not record.benchmark.endswith(DEVELOPMENT)]
    found = {label: [r for r in records if r.benchmark.startswith(start)] for label, start in benchmarks.items()}
    rows = [noise_row(label, of_label) for label, of_label in found.items()]
    return markdown_table(["", "largest range", "median range", "runs"], rows)


def noise_row(label: str, records: Iterable[RunRecord]) -> list[object]:
    """The largest and the median range of the accuracy between repeats, in points for each part."""
    ranges = []
    for record in records:
        if len(record.selected.repeats) > 1:
            repeats = [scores.percent() for scores in record.selected.repeats]
            ranges.append([max(r[part] for r in repeats) - min(r[part] for r in repeats) for part in _PARTS])
    largest, typical = (
        " / ".join(f"{reduce(values):.1f}" for values in zip(*ranges, strict=True)) for reduce in (max, median)
    )
    return [label, largest, typical, len(ranges)]
