"""Folders of images, linked or copied: by category, for Hugging Face `datasets`, for FiftyOne."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from promptcal.errors import RunError
from promptcal.exporters.naming import file_names, folder_names
from promptcal.run import Run
from promptcal.runtime import files


def write_folders(run: Run, output: Path, images: Iterable[Path], copy: bool) -> None:
    """A folder for each category with its images, and `categories.json` with the category of each folder."""
    assignments = run.assignments()
    folders = folder_names(assignments.names)
    targets = [""] * len(assignments)
    members: dict[int, list[int]] = {}
    for i, cluster in enumerate(assignments.clusters.tolist()):
        members.setdefault(cluster, []).append(i)
    for cluster, images_of in members.items():
        for i, name in zip(images_of, file_names([assignments.paths[i] for i in images_of]), strict=True):
            targets[i] = f"{folders[cluster]}/{name}"
    categories = [
        {"folder": folder, "name": name, "cluster": cluster, "kind": assignments.kind(cluster)}
        for cluster, (folder, name) in enumerate(zip(folders, assignments.names, strict=True))
    ]
    _write(output, folders, targets, images, copy, lambda root: files.write_json(root / "categories.json", categories))


def write_huggingface(run: Run, output: Path, images: Iterable[Path], copy: bool) -> None:
    """An image folder that ``load_dataset("imagefolder", data_dir=...)`` reads: `train/` with `metadata.jsonl`.

    All images are in `train`: `datasets` would take a "test" in an image's name for another split.
    """
    table = run.assignments().table()
    names = file_names(table["path"])
    table = {"file_name": names, **table, "label": table["name"]}  # `datasets` calls the category label
    del table["name"]
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    targets = [f"train/{name}" for name in names]
    _write(output, ["train"], targets, images, copy, lambda root: files.write_text(root / "train/metadata.jsonl", text))


def write_fiftyone(run: Run, output: Path, images: Iterable[Path], copy: bool) -> None:
    """FiftyOne's FiftyOneImageClassificationDataset: `data/`, and `labels.json` with the class of each file by stem."""
    assignments = run.assignments()
    names = file_names(assignments.paths, by_stem=True)
    labels = {Path(name).stem: int(c) for name, c in zip(names, assignments.clusters, strict=True)}
    content = {"classes": assignments.names, "labels": labels}
    targets = [f"data/{name}" for name in names]
    _write(output, ["data"], targets, images, copy, lambda root: files.write_json(root / "labels.json", content))


def _write(
    output: Path,
    folders: Sequence[str],
    targets: Sequence[str],
    images: Iterable[Path],
    copy: bool,
    write_labels: Callable[[Path], None],
) -> None:
    """Place each image at its target below the output, then call ``write_labels``."""

    def fill(root: Path) -> None:
        for folder in folders:
            (root / folder).mkdir()
        for target, image in zip(targets, images, strict=True):
            if copy:
                shutil.copy2(image, root / target)
                continue
            try:
                os.symlink(image, root / target)
            except OSError as error:
                raise RunError(f"links cannot be created here ({error.strerror}); add --copy") from error
        write_labels(root)

    files.write_folder(output, fill)
