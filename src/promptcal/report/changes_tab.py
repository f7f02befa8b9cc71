"""What changed since the run that this one started from, for the report's Changes tab."""

import csv
import json
from typing import Any

import numpy as np

from promptcal.errors import RunError
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.page_data import pack
from promptcal.run.inference import RunDirectory


def changes_record(directory: RunDirectory, analysis: ClusterAnalysis) -> dict[str, Any] | None:
    """The summary, and each moved image with its previous category; None for a run that started from no other."""
    if not directory.changes_summary_file.is_file():
        return None
    try:
        summary: dict[str, Any] = json.loads(directory.changes_summary_file.read_text(encoding="utf-8"))
        with directory.changes_file.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        position = {path: i for i, path in enumerate(analysis.assignments.paths)}
        moved = [position[row["path"]] for row in rows]
        origins = sorted({(int(row["from_cluster"]), row["from_name"]) for row in rows})
        number = {cluster: i for i, (cluster, _) in enumerate(origins)}
        name = analysis.display_name
        return {
            "previousRun": summary["from"],
            "images": summary["images"],
            "moved": summary["moved"],
            "added": summary["added"],
            "missing": summary["gone"],
            "renamed": [{"cluster": r["cluster"], "oldName": name(r["from"])} for r in summary["renamed"]],
            "removedCategories": [
                {"name": name(r["name"]), "into": r["into"] and name(r["into"])} for r in summary["vanished"]
            ],
            "addedCategories": [{"cluster": r["cluster"]} for r in summary["appeared"]],
            "origins": [name(origin) for _, origin in origins],
            "image": pack(np.array(moved, dtype="<u4")),
            "origin": pack(np.array([number[int(row["from_cluster"])] for row in rows], dtype="<u2")),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{directory.changes_file} or {directory.changes_summary_file.name} beside it cannot be read ({error!r}); "
            "fit again with --overwrite"
        ) from error
