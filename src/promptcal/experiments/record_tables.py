"""Tables of a document that compare other values of run records than accuracies over seeds."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from promptcal.experiments.records import RunRecord

PARTS = ("all", "known", "new")
GROUPS = ("known", "new")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def noise_row(label: str, records: Iterable[RunRecord]) -> list[object]:
    """How much the accuracy of the same weights varies, in points for each part.

    Between seeds of k-means (largest range, median range), and between the score in training (compiled network) and
    the read-out with the same seed (network that is not compiled).
    """
    ranges, differences = [], []
    for record in records:
        if not record.readouts:
            continue
        seeds = [scores.percent() for scores in record.readouts["student, cls"]]
        if len(seeds) > 1:
            ranges.append([max(s[part] for s in seeds) - min(s[part] for s in seeds) for part in PARTS])
        kept = record.settings.get("affinity.keep", "student")  # an option of version 0.1
        again, last = record.readouts[f"{kept}, cls"][0].percent(), record.last.percent()
        differences.append([abs(last[part] - again[part]) for part in PARTS])
    largest, typical, other = (
        " / ".join(f"{reduce(values):.1f}" for values in zip(*found, strict=True))
        for reduce, found in ((max, ranges), (median, ranges), (max, differences))
    )
    return [label, largest, typical, len(ranges), other, len(differences)]


NOISE_HEAD = ("", "largest range", "median range", "runs", "largest difference compiled - not compiled", "runs")
GRAPH_HEAD = ("known · new classes", "epoch", "positives per query", "precision", "recall", "queries without positives")


def graph_rows(label: str, record: RunRecord) -> list[list[object]]:
    """The affinity graph in the first and in the last epoch of stage 2."""
    epochs = [epoch for epoch in record.epochs if epoch["stage"] == "affinity"]
    rows = []
    for name, epoch in ((label, epochs[0]), ("", epochs[-1])):
        cells: list[object] = [name, epoch["epoch"]]
        for key, digits in (("positives", 1), ("precision", 2), ("recall", 2), ("without_positives", 2)):
            cells.append(" · ".join(f"{epoch[f'cls/{key}_{group}']:.{digits}f}" for group in GROUPS))
        rows.append(cells)
    return rows


def pair_precision_rows(label: str, file: Path) -> tuple[list[str], list[list[object]]]:
    """Precision at some recalls for each ranking of pairs: the head of the table and its rows."""
    found = json.loads(file.read_text(encoding="utf-8"))
    head = ["known · new classes", "ranked by", *(f"recall {recall:g}" for recall in found["recalls"])]
    rows: list[list[object]] = []
    for number, (ranking, by_group) in enumerate(found["precision"].items()):
        pairs = zip(*(by_group[group] for group in GROUPS), strict=True)
        cells = [" · ".join("none" if value is None else f"{value:.2f}" for value in pair) for pair in pairs]
        rows.append(["" if number else label, ranking, *cells])
    return head, rows
