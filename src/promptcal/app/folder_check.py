"""What is wrong with a folder of images, before its first fit; computed in a separate process (`side_process`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptcal.app.first_fit import label_findings
from promptcal.data.check import Finding, check_images
from promptcal.data.images import ImageSet
from promptcal.data.labels import read_labels
from promptcal.runtime.user_warnings import collected_warnings

_MOST_CASES = 5


def check_folder(images: str, labels: str | None, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """What `promptcal check` finds, for the page that starts a first fit."""
    found = ImageSet.of(images)
    with collected_warnings() as warnings:
        names = read_labels(None if labels is None else Path(labels), found)
    report = check_images(found, names, on_progress=lambda done: on_progress(done, len(found)))
    return {
        "images": report.n_images,
        "classes": sorted(report.labelled.items(), key=lambda item: -item[1]),
        "unlabelled": report.n_unlabelled,
        "unreadable": len(report.unreadable),
        "problems": [_shortened(finding) for finding in report.problems],
        "warnings": [*label_findings(warnings), *map(_shortened, report.warnings)],
    }


def _shortened(finding: Finding) -> dict[str, Any]:
    left = len(finding.cases) - _MOST_CASES
    return {"what": finding.what, "amount": finding.amount, "cases": finding.cases[:_MOST_CASES], "left": max(0, left)}
