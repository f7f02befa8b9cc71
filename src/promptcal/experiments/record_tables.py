"""Tables of a document that compare other values of run records than accuracies over seeds, as Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from promptcal.data.benchmarks.spec import DEVELOPMENT
from promptcal.experiments.run_records import RunRecord
from promptcal.experiments.table_report import markdown_table

_PARTS = ("all", "known", "new")
_GROUPS = ("known", "new")


def noise_table(benchmarks: Mapping[str, str], records: Sequence[RunRecord]) -> str:
    """A row for the records of all benchmarks whose names begin in the same way; read-outs only if there are any.

    Runs on development splits are left out.
    """
    records = [record for record in records if not record.benchmark.endswith(DEVELOPMENT)]
    head = ["", "largest range", "median range", "runs", "largest difference compiled - not compiled", "runs"]
    n_columns = len(head) if any(record.readouts for record in records) else 4
    found = {label: [r for r in records if r.benchmark.startswith(start)] for label, start in benchmarks.items()}
    return markdown_table(
        head[:n_columns], [noise_row(label, of_label)[:n_columns] for label, of_label in found.items()]
    )


def noise_row(label: str, records: Iterable[RunRecord]) -> list[object]:
    """How much the accuracy of the same weights varies, in points for each part.

    Between seeds of k-means (largest range, median range), and between the score in training (compiled network) and
    the read-out with the same seed (network that is not compiled).
    """
    ranges, differences = [], []
    for record in records:
        repeats = record.readouts.get("student, cls", record.selected.repeats)
        if len(repeats) > 1:
            seeds = [scores.percent() for scores in repeats]
            ranges.append([max(s[part] for s in seeds) - min(s[part] for s in seeds) for part in _PARTS])
        if not record.readouts:
            continue
        kept = record.settings.get("affinity.keep", "student")  # an option of version 0.1
        again, last = record.readouts[f"{kept}, cls"][0].percent(), record.last.percent()
        differences.append([abs(last[part] - again[part]) for part in _PARTS])
    largest, typical, other = (
        " / ".join(f"{reduce(values):.1f}" for values in zip(*found, strict=True))
        for reduce, found in ((max, ranges), (median, ranges), (max, differences))
    )
    return [label, largest, typical, len(ranges), other, len(differences)]


def graph_table(records: Mapping[str, RunRecord]) -> str:
    """The affinity graph in the first and in the last epoch of stage 2."""
    columns = {"positives": 1, "precision": 2, "recall": 2, "without_positives": 2}  # with their digits
    head = ("known · new classes", "epoch", "positives per query", "precision", "recall", "queries without positives")
    rows = []
    for label, record in records.items():
        epochs = [epoch for epoch in record.epochs if epoch["stage"] == "affinity"]
        for name, epoch in ((label, epochs[0]), ("", epochs[-1])):
            values = [[f"{epoch[f'cls/{key}_{group}']:.{n}f}" for group in _GROUPS] for key, n in columns.items()]
            rows.append([name, epoch["epoch"], *map(" · ".join, values)])
    return markdown_table(head, rows)


def pair_precision_table(paths: Mapping[str, Path]) -> str:
    """Precision at some recalls for each ranking of pairs."""
    contents = {label: json.loads(path.read_text(encoding="utf-8")) for label, path in paths.items()}
    rows = []
    for label, content in contents.items():
        for number, (ranking, by_group) in enumerate(content["precision"].items()):
            pairs = zip(*(by_group[group] for group in _GROUPS), strict=True)
            cells = [" · ".join("none" if value is None else f"{value:.2f}" for value in pair) for pair in pairs]
            rows.append(["" if number else label, ranking, *cells])
    recalls = next(iter(contents.values()))["recalls"]
    return markdown_table(["known · new classes", "ranked by", *(f"recall {recall:g}" for recall in recalls)], rows)
