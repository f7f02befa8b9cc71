"""What moved since the run that another goes on from, for its report."""

import csv
import json
from typing import Any

import numpy as np

from promptcal.errors import RunError
from promptcal.report.data import ClusterAnalysis, packed
from promptcal.run.inference import RunDirectory


def changes_record(directory: RunDirectory, found: ClusterAnalysis) -> dict[str, Any] | None:
    """The summary, and each image that moved with the category it was in; None for a run that started by itself."""
    if not directory.changes_summary_file.is_file():
        return None
    try:
        summary: dict[str, Any] = json.loads(directory.changes_summary_file.read_text(encoding="utf-8"))
        with directory.changes_file.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        place = {path: i for i, path in enumerate(found.assignments.paths)}
        moved = [place[row["path"]] for row in rows]
        origins = sorted({(int(row["from_cluster"]), row["from_name"]) for row in rows})
        number = {cluster: i for i, (cluster, _) in enumerate(origins)}
        return {
            "from": summary["from"],
            **{count: summary[count] for count in ("images", "moved", "added", "gone")},
            "renamed": [{**told, "from": found.shown_name(told["from"])} for told in summary["renamed"]],
            "vanished": [
                {
                    **told,
                    "name": found.shown_name(told["name"]),
                    "into": told["into"] and found.shown_name(told["into"]),
                }
                for told in summary.get("vanished", [])
            ],
            "appeared": summary.get("appeared", []),
            "origins": [found.shown_name(name) for _, name in origins],
            "image": packed(np.array(moved, dtype="<u4")),
            "origin": packed(np.array([number[int(row["from_cluster"])] for row in rows], dtype="<u2")),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{directory.changes_file} or {directory.changes_summary_file.name} beside it cannot be read ({error!r}); "
            "fit again with --overwrite"
        ) from error
