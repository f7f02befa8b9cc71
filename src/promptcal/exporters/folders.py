"""Folders of images, linked or copied: by category, for Hugging Face `datasets`, for FiftyOne."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from promptcal.errors import RunError
from promptcal.exporters.naming import file_names, folder_names
from promptcal.run import Assignments, Run
from promptcal.runtime import files

Progress = Callable[[int], None]


def write_folders(run: Run, output: Path, copy: bool, on_progress: Progress) -> None:
    """A folder for each category with its images, and `categories.json` with the category of each folder."""
    assignments = run.assignments()
    folders = folder_names(assignments.names)
    targets = [Path()] * len(assignments)
    for cluster, folder in enumerate(folders):
        members = [i for i, c in enumerate(assignments.clusters) if c == cluster]
        for i, name in zip(members, file_names([assignments.paths[i] for i in members]), strict=True):
            targets[i] = Path(folder) / name

    def fill(root: Path) -> None:
        for folder in folders:
            (root / folder).mkdir()
        _place_images(root, targets, run.image_files(), copy, on_progress)
        categories = [
            {"folder": folder, "name": name, "cluster": cluster, "kind": assignments.kind(cluster)}
            for cluster, (folder, name) in enumerate(zip(folders, assignments.names, strict=True))
        ]
        files.write_json(root / "categories.json", categories)

    files.write_folder(output, fill)


def write_huggingface(run: Run, output: Path, copy: bool, on_progress: Progress) -> None:
    """An image folder that ``load_dataset("imagefolder", data_dir=...)`` reads: `train/` with `metadata.jsonl`.

    All images are in `train`: `datasets` would take a "test" in an image's name for another split.
    """
    assignments = run.assignments()
    names = file_names(assignments.paths)

    def fill(root: Path) -> None:
        (root / "train").mkdir()
        _place_images(root, [Path("train") / n for n in names], run.image_files(), copy, on_progress)
        rows = [{"file_name": name, **row} for name, row in zip(names, _rows(assignments), strict=True)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        files.write_text(root / "train" / "metadata.jsonl", text)

    files.write_folder(output, fill)


def write_fiftyone(run: Run, output: Path, copy: bool, on_progress: Progress) -> None:
    """FiftyOne's FiftyOneImageClassificationDataset: `data/`, and `labels.json` with the class of each file by stem."""
    assignments = run.assignments()
    names = file_names(assignments.paths, by_stem=True)

    def fill(root: Path) -> None:
        (root / "data").mkdir()
        _place_images(root, [Path("data") / n for n in names], run.image_files(), copy, on_progress)
        labels = {Path(name).stem: int(c) for name, c in zip(names, assignments.clusters, strict=True)}
        files.write_json(root / "labels.json", {"classes": assignments.names, "labels": labels})

    files.write_folder(output, fill)


def _rows(assignments: Assignments) -> Iterable[dict[str, Any]]:
    """A row for each image, with its category under the name that `datasets` expects: label."""
    table = assignments.table()
    table["label"] = table.pop("name")
    return (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))


def _place_images(
    root: Path, targets: Iterable[Path], originals: Iterable[Path], copy: bool, on_progress: Progress
) -> None:
    for done, (target, original) in enumerate(zip(targets, originals, strict=True), 1):
        if copy:
            shutil.copy2(original, root / target)
        else:
            try:
                os.symlink(original, root / target)
            except OSError as error:
                raise RunError(f"links cannot be created here ({error.strerror}); add --copy") from error
        on_progress(done)
