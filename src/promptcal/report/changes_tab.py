"""What changed since the run that this one started from, for the report's Changes tab."""

from typing import Any

import numpy as np

from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.page_data import pack
from promptcal.run import RunDirectory, RunResults
from promptcal.run.assignments import as_text, read_csv_rows
from promptcal.runtime.json_model import damaged


def changes_record(directory: RunDirectory, results: RunResults, analysis: ClusterAnalysis) -> dict[str, Any] | None:
    """The summary, and each moved image with its previous category; None for a run that started from no other."""
    changes, name = results.changes, analysis.display_name
    if changes is None:
        return None
    position = {path: i for i, path in enumerate(analysis.assignments.paths)}
    try:
        rows = [
            (position[row["path"]], name(as_text(row["from_name"]))) for row in read_csv_rows(directory.changes_file)
        ]
    except (KeyError, TypeError) as error:
        raise damaged(directory.changes_file, repr(error)) from error
    origins = sorted({origin for _, origin in rows})
    number = {origin: i for i, origin in enumerate(origins)}
    return {
        "previousRun": changes.previous_run,
        "images": changes.images,
        "moved": changes.moved,
        "added": changes.added,
        "missing": changes.missing,
        "renamed": [{"cluster": r.cluster, "oldName": name(r.old_name)} for r in changes.renamed],
        "removedCategories": [
            {"name": name(r.name), "into": None if r.into is None else name(r.into)} for r in changes.removed_categories
        ],
        "addedCategories": [{"cluster": category.cluster} for category in changes.added_categories],
        "origins": origins,
        "image": pack(np.array([image for image, _ in rows], dtype="<u4")),
        "origin": pack(np.array([number[origin] for _, origin in rows], dtype="<u2")),
    }
