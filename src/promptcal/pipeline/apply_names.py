"""Apply names and merges to a finished run without training: `promptcal name`.

The label file is what the report downloads. A discovered category gets the name that most of its labelled images have;
a category more than half of whose images have the name of another one is merged into it; other labelled images move to
the category of their label, which is a new one if no category has this name.
"""

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcal.data import parse_labels
from promptcal.data.labels import class_numbers, spelled_differently
from promptcal.discovery.calibration import Calibration
from promptcal.discovery.partition import Partition, nearest_centroids, rank_in_blocks
from promptcal.errors import LabelError, RunError
from promptcal.exporters.table_files import write_parquet_if_installed
from promptcal.metrics import contingency_table
from promptcal.pipeline.calibrating import calibrate_result
from promptcal.pipeline.continuation import REPORTED_SHARE
from promptcal.pipeline.matching import class_origins, kept_numbers
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.run.assignments import Assignments
from promptcal.run.categories import describe_categories
from promptcal.run.directory import RunDirectory
from promptcal.run.info import RunInfo
from promptcal.run.replacing import REPLACED, copy_files, copy_pending, finish_replacing, replace_files
from promptcal.runtime import files
from promptcal.runtime.frames import data_frame, html_table

_FIRST_RESULT = "training is not finished; if the fit is resumed, apply the label file again when it has ended"


@dataclass(frozen=True)
class NamingResult:
    """What `promptcal name` changed: old name -> new name of each renamed and of each merged category, how many images
    moved to the category of their label, notes on what it left as it was, and the number of images of each category
    that was added for them."""

    renamed: dict[str, str]
    merged: dict[str, str]
    moved: int
    notes: list[str] = field(default_factory=list)
    added: dict[str, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        caption = f"{self.moved} images moved to the category of their label"
        notes = "".join(f"<p>Note: {html.escape(note)}</p>" for note in self.notes)
        return html_table(("change", "before", "now"), self._changes(), caption) + notes

    def _changes(self) -> list[tuple[str, str, str]]:
        renamed = [("renamed", old, new) for old, new in self.renamed.items()]
        merged = [("merged", old, new) for old, new in self.merged.items()]
        return [*renamed, *merged, *(("added", "", name) for name in self.added)]

    def to_pandas(self) -> Any:
        """The changes for pandas, which must be installed.

        Returns:
            A data frame with one row per category and the columns change (renamed, merged or added), before and now.
        """
        changes = self._changes()
        return data_frame({name: [row[i] for row in changes] for i, name in enumerate(("change", "before", "now"))})


@dataclass(frozen=True)
class NamedCategories:
    """The category that each previous one becomes (``targets``), and the previous one that each continues (``kept``, -1
    for an added one), the classes first. ``numbers`` are the numbers of the new categories, ``names`` their names by
    number."""

    targets: np.ndarray
    kept: np.ndarray
    numbers: np.ndarray
    names: list[str]

    @property
    def has_merges(self) -> bool:
        return len(set(self.targets.tolist())) < len(self.targets)


def check_letter_case(names: Sequence[str]) -> None:
    """Reject names that differ only in letter case."""
    pair = next(iter(spelled_differently(dict.fromkeys(names))), None)
    if pair is not None:
        raise LabelError(
            f"the names {pair[0]!r} and {pair[1]!r} differ only in letter case; write the same category in the same way"
        )


def named_categories(
    previous_names: Sequence[str], classes: Sequence[str], shared: np.ndarray, sizes: np.ndarray
) -> NamedCategories:
    """``shared`` counts labelled images by class and previous category, ``sizes`` the images of each category."""
    targets = np.full(len(previous_names), -1)
    origins = class_origins(previous_names, classes, shared)
    for number, category in origins.items():
        targets[category] = number
    for category in np.flatnonzero((targets < 0) & (2 * shared.sum(axis=0) > sizes)).tolist():
        counts = shared[:, category]
        if 2 * counts.max() <= counts.sum():
            listed = ", ".join(f"{classes[c]} ({counts[c]})" for c in np.flatnonzero(counts).tolist())
            raise LabelError(
                f"the images of {previous_names[category]} have labels of several categories, none of them in more "
                f"than half: {listed}; continue the run with `promptcal fit --from`, which can divide it"
            )
        targets[category] = int(counts.argmax())
    for number in range(len(classes)):
        merged = np.flatnonzero(targets == number)
        if number not in origins and len(merged):
            origins[number] = int(merged[shared[number, merged].argmax()])
    unnamed = np.flatnonzero(targets < 0)
    targets[unnamed] = len(classes) + np.arange(len(unnamed))
    n_categories = len(classes) + len(unnamed)
    origins |= dict(zip(targets[unnamed].tolist(), unnamed.tolist(), strict=True))
    kept = np.array([origins.get(i, -1) for i in range(n_categories)])
    numbers = kept_numbers(origins, n_categories)
    names = [""] * n_categories
    for i, number in enumerate(numbers):
        names[number] = classes[i] if i < len(classes) else previous_names[kept[i]]
    return NamedCategories(targets, kept, numbers, names)


def apply_names(path: Path, labels: Any) -> NamingResult:
    """Apply the names and merges of a label file to the run in ``path``."""
    directory = RunDirectory(path)
    finish_replacing(directory)
    with directory.locked():
        return _apply(PreviousRun(path), labels)


def undo_names(path: Path) -> None:
    """Restore the run as its fit wrote it."""
    directory = RunDirectory(path)
    finish_replacing(directory)
    with directory.locked():
        if not directory.original_folder.is_dir():
            raise RunError(f"no names were applied to {path}, so there is nothing to undo")
        _restore(directory)


def drop_names_of_first_result(directory: RunDirectory) -> bool:
    """Before a fit is resumed: whether names were applied to its first result, which is then restored as the fit wrote
    it. The caller holds the lock of the run directory."""
    if not directory.original_folder.is_dir():
        return False
    if directory.pending_folder.is_dir():
        copy_pending(directory)
    _restore(directory)
    return True


def _restore(directory: RunDirectory) -> None:
    directory.check_links()
    _check_original(directory)
    replace_files(directory, lambda folder: copy_files(directory.original_folder, folder))
    files.remove_folder(directory.original_folder)


def _check_original(directory: RunDirectory) -> None:
    """Reject files of the fit that are damaged or missing, so that the run as it is now is kept."""
    original = RunDirectory(directory.original_folder)
    try:
        info = original.info()
        if not info.has_result:
            raise RunError(f"{original.info_file} is not of a finished run")
        for name in set(info.sha256) & set(REPLACED):
            original.verify_checksum(original.path / name)
    except (OSError, RunError) as error:
        raise RunError(
            f"the names cannot be undone, because what the fit wrote is damaged ({error}); the run stays as it is"
        ) from error


def _apply(previous: PreviousRun, labels: Any) -> NamingResult:
    run, found = previous.run, previous.assignments
    given, positions = run.given_images()
    parsed = parse_labels(labels, given)
    removed = [parsed.removed[i] for i in positions]
    label_names = previous.merge_labels([parsed.names[i] for i in positions], removed, found.paths)
    numbers, classes = class_numbers(label_names)
    label_classes = set(classes)
    check_letter_case([*run.names, *classes])
    shared = contingency_table(numbers, found.clusters, len(classes), len(run.names))
    sizes = np.bincount(found.clusters, minlength=len(run.centroids))  # which are read: damaged ones are not replaced
    categories = named_categories(run.names, classes, shared, sizes)
    clusters = np.where(numbers >= 0, numbers, categories.targets[found.clusters])
    features = torch.from_numpy(run.embeddings())
    partition = _partition(previous, features, clusters, categories)
    calibration = _calibrate(previous, features, partition, numbers)
    partition = partition.reordered(np.argsort(categories.numbers))
    ranked = rank_in_blocks(
        features,
        torch.from_numpy(partition.clusters),
        lambda block: torch.softmax(run.assignment.scores(block, partition) / calibration.temperature, dim=1),
    )
    assignments = Assignments.of(
        found.paths,
        ranked,
        categories.names,
        [name in label_classes for name in categories.names],
        numbers >= 0,
        stability=found.stability,
    )
    result = _result(previous, categories, assignments, removed, features, partition)
    _write(previous, assignments, partition, calibration, classes, has_merges=categories.has_merges)
    return result


def _partition(previous: PreviousRun, features: Tensor, clusters: np.ndarray, categories: NamedCategories) -> Partition:
    """The categories, classes first. A merged category has the mean of all its images as centroid; a classifier has an
    output for each category, so its categories cannot be merged."""
    run, n_categories = previous.run, len(categories.names)
    if run.assignment.uses_kmeans:
        return run.assignment.from_clusters(features, clusters, n_categories)
    if categories.has_merges or n_categories > len(run.names):
        raise RunError(
            f"the method {run.method.name} has a classifier with an output for each category, so merges and added "
            f"categories need training; continue the run with `promptcal fit --from {run.path}`"
        )
    order = torch.from_numpy(np.argsort(categories.targets))
    return Partition(clusters, run.centroids.cpu()[order], run.columns.cpu()[order])


def _calibrate(previous: PreviousRun, features: Tensor, partition: Partition, numbers: np.ndarray) -> Calibration:
    run, assignment = previous.run, previous.run.assignment
    held_out = set(run.directory.held_out().paths)
    is_held_out = np.array([path in held_out for path in previous.assignments.paths])
    return calibrate_result(
        assignment,
        features,
        partition,
        numbers,
        np.where(is_held_out, numbers, -1),
        labels_in_centroids=assignment.uses_kmeans,  # the centroids are means of all members
    )


def _result(
    previous: PreviousRun,
    categories: NamedCategories,
    now: Assignments,
    removed: Sequence[bool],
    features: Tensor,
    partition: Partition,
) -> NamingResult:
    before, old = previous.assignments.clusters, previous.run.names
    new = [categories.names[categories.numbers[target]] for target in categories.targets]
    expected = categories.numbers[categories.targets[before]]
    is_merged = categories.kept[categories.targets] != np.arange(len(old))
    merged = {old[c]: name for c, name in enumerate(new) if is_merged[c]}
    renamed = {old[c]: name for c, name in enumerate(new) if not is_merged[c] and old[c] != name}
    moved = int((now.clusters != expected).sum())
    notes = _notes(now, removed, set(merged.values()), features, partition)
    notes = [_FIRST_RESULT, *notes] if previous.run.is_first_result else notes
    sizes = np.bincount(now.clusters, minlength=len(now.names))[categories.numbers]
    added = {now.names[categories.numbers[c]]: int(sizes[c]) for c in np.flatnonzero(categories.kept < 0)}
    return NamingResult(renamed, merged, moved, notes, added)


def _notes(
    now: Assignments, removed: Sequence[bool], merged: Collection[str], features: Tensor, partition: Partition
) -> list[str]:
    notes = []
    if any(removed):
        notes.append(
            f"{sum(removed)} images marked as wrong have no label and stay in their category; `promptcal fit --from` "
            "assigns them again"
        )
    nearest = nearest_centroids(features, partition.centroids).numpy()
    for number, name in enumerate(now.names):
        members = now.clusters == number
        elsewhere = int((members & (nearest != number)).sum())
        if name in merged and elsewhere > REPORTED_SHARE * members.sum():
            notes.append(
                f"{elsewhere} of {members.sum()} images of the merged category {name} are nearer to another one, so "
                "`promptcal predict` would not find them; `promptcal fit --from` brings such images together"
            )
    return notes


def _write(
    previous: PreviousRun,
    assignments: Assignments,
    partition: Partition,
    calibration: Calibration,
    classes: list[str],
    *,
    has_merges: bool,
) -> None:
    directory, run = previous.run.directory, previous.run
    directory.check_links()
    if not directory.original_folder.is_dir():
        files.write_folder(directory.original_folder, lambda folder: copy_files(directory.path, folder))

    def fill(folder: Path) -> None:
        target = RunDirectory(folder)
        files.write_text(target.assignments_file, assignments.to_csv())
        if directory.assignments_parquet_file.is_file():
            write_parquet_if_installed(target.assignments_parquet_file, assignments.table())
        files.write_safetensors(target.centroids_file, partition.tensors())
        calibration.write(target.calibration_file)
        held_out, labelled = directory.held_out(), np.flatnonzero(assignments.labelled)
        added = [assignments.paths[i] for i in labelled if assignments.paths[i] not in previous.label_of]
        held_out.model_copy(update={"unused": [*held_out.unused, *added]}).write(target.held_out_file)
        results = directory.results()
        if results is not None:
            categories = describe_categories(assignments, torch.from_numpy(run.embeddings()))
            categories.write_csv(target.categories_file)
            update: dict[str, Any] = {"categories": categories}
            if has_merges:
                update["changes"] = None  # its cluster numbers are others
            results.model_copy(update=update).write(target.results_file)
        written = (target.assignments_file, target.centroids_file)
        values: dict[str, Any] = {
            **run.info.model_dump(),
            "categories": assignments.names,
            "known_classes": classes,
            "n_classes": len(assignments.names),
            "n_labelled": int(assignments.labelled.sum()),
            "n_trained_classes": run.n_trained_classes,
            "former_names": previous.former_names(assignments.names),
            "sha256": {**run.info.sha256, **{file.name: files.file_digest(file) for file in written}},
        }
        RunInfo.model_validate(values).write(target.info_file)

    replace_files(directory, fill)
