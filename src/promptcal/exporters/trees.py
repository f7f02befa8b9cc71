"""Folders of images, linked or copied: by category, for Hugging Face `datasets`, for FiftyOne."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from promptcal.errors import RunError
from promptcal.exporters.naming import file_names, folder_names
from promptcal.run.inference import Assignments, Run
from promptcal.runtime import files

Progress = Callable[[int], None]


def write_folders(run: Run, output: Path, copy: bool, on_progress: Progress) -> None:
    """A folder for each category with its images, and `categories.json`, which says what each folder stands for."""
    assignments = run.assignments()
    folders = folder_names(assignments.names)
    places: list[Path | None] = [None] * len(assignments)
    for cluster, folder in enumerate(folders):
        members = [i for i, c in enumerate(assignments.clusters) if c == cluster]
        for i, name in zip(members, file_names([assignments.paths[i] for i in members]), strict=True):
            places[i] = Path(folder) / name

    def fill(root: Path) -> None:
        for folder in folders:
            (root / folder).mkdir()
        _place(root, zip(places, run.image_files(), strict=True), copy, on_progress)
        told = [
            {"folder": folder, "name": name, "cluster": cluster, "kind": assignments.kind(cluster)}
            for cluster, (folder, name) in enumerate(zip(folders, assignments.names, strict=True))
        ]
        files.write_json(root / "categories.json", told)

    files.write_folder(output, fill)


def write_huggingface(run: Run, output: Path, copy: bool, on_progress: Progress) -> None:
    """An image folder that ``load_dataset("imagefolder", data_dir=...)`` reads: `train/` with `metadata.jsonl`.

    All images lie in `train`, since `datasets` would take a "test" in any of their names for another split.
    """
    assignments = run.assignments()
    names = file_names(assignments.paths)

    def fill(root: Path) -> None:
        (root / "train").mkdir()
        _place(root, zip((Path("train") / n for n in names), run.image_files(), strict=True), copy, on_progress)
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
        _place(root, zip((Path("data") / n for n in names), run.image_files(), strict=True), copy, on_progress)
        targets = {Path(name).stem: int(c) for name, c in zip(names, assignments.clusters, strict=True)}
        files.write_json(root / "labels.json", {"classes": assignments.names, "labels": targets})

    files.write_folder(output, fill)


def _rows(assignments: Assignments) -> Iterable[dict[str, Any]]:
    """The assignments by image, with the category under the name `datasets` expects: label."""
    table = assignments.table()
    table["label"] = table.pop("name")
    return (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))


def _place(
    root: Path, places: Iterable[tuple[Path | None, Path]], copy: bool, on_progress: Callable[[int], None]
) -> None:
    for done, (place, original) in enumerate(places, 1):
        assert place is not None
        if copy:
            shutil.copy2(original, root / place)
        else:
            try:
                os.symlink(original, root / place)
            except OSError as error:
                raise RunError(f"links cannot be made here ({error.strerror}); add --copy") from error
        on_progress(done)
