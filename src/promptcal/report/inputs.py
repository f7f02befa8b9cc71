"""What a report and its figures are made from: read from the run directory, or computed and stored there."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from promptcal.data import ImageSet, StreamedImages
from promptcal.data.images import OpenFile
from promptcal.errors import PromptCALWarning, RunError
from promptcal.methods import METHODS
from promptcal.report.attention_panels import AttentionMaps, Examples, attention_maps
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.embedding_map import N_ITERATIONS, compute_map, read_map, write_map
from promptcal.report.thumbnails import Thumbnails, make_thumbnails, select_images
from promptcal.run.inference import Run, reject_path_traversal
from promptcal.runtime.arrays import read_array
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed

_PARTS = ("all", "known", "new")


@dataclass(frozen=True)
class ReportInputs:
    """A finished run with the analysis of its clusters, its thumbnails, results and epoch records."""

    run: Run
    analysis: ClusterAnalysis
    thumbnails: Thumbnails | None
    results: dict[str, Any]
    records: list[dict[str, Any]]
    console: Console

    @classmethod
    def load(cls, run: Run, console: Console) -> "ReportInputs":
        assignments = run.assignments()
        thumbnails = Thumbnails.read(run.directory.thumbnails_folder)
        if thumbnails is None:
            thumbnails = _thumbnails_from_folder(run, console)
        else:
            _check_positions(thumbnails.images, len(assignments), run.directory.thumbnails_folder)
        analysis = ClusterAnalysis(
            assignments,
            _embeddings(run, len(assignments)),
            run.info["known_classes"],
            _temperature(run),
            run.truth(),
            select_images(assignments) if thumbnails is None else thumbnails.images,
        )
        return cls(run, analysis, thumbnails, _results(run), _records(run), console)

    def coordinates(self) -> np.ndarray:
        """The map of the shown images: the stored map, or a new one that is then stored."""
        directory, shown = self.run.directory, self.analysis.shown
        stored = read_map(directory.map_file, shown, directory.embeddings_file)
        if stored is not None:
            return stored
        with progress_bar(self.console) as bar:
            task = bar.add_task("map", total=N_ITERATIONS, note="")
            computed = compute_map(
                self.analysis.embeddings[shown],
                seed=derive_seed(self.run.config.seed, "map") % 2**32,
                on_progress=lambda done: bar.update(task, completed=done),
            )
        write_map(directory.map_file, shown, computed)
        return computed

    def attention(self) -> AttentionMaps:
        """The stored maps, which need no weights, or new ones, which are stored if no step is missing."""
        directory = self.run.directory
        examples = Examples.read(directory.examples_file)
        if examples is not None:
            _check_positions(examples.images, len(self.analysis.assignments), directory.examples_file)
        stored = examples and AttentionMaps.read(directory.attention_file, examples, directory.model_file)
        if stored:
            return stored
        computed = attention_maps(self.run, examples)
        if computed.steps and not computed.missing:
            computed.write(directory.attention_file)
        return computed


def _thumbnails_from_folder(run: Run, console: Console) -> Thumbnails | None:
    """For a run without thumbnails: from its images, if they still exist; they are stored."""
    root = run.info.get("root")
    folder = None if root is None else Path(root)
    if folder is None or not folder.is_dir():
        _warn(f"{run.path} has no thumbnails and its image folder is missing, so its report has no pictures")
        return None
    _warn(f"{run.path} has no thumbnails; they are made now from {folder}")
    assignments = run.assignments()
    reject_path_traversal(assignments.paths, run.path)
    opened = ImageSet(assignments.paths, OpenFile([folder / path for path in assignments.paths]), folder)
    shown = select_images(assignments)
    missing: list[int] = []
    with progress_bar(console) as bar:
        task = bar.add_task("thumbnails", total=len(shown), note="")
        made = make_thumbnails(
            StreamedImages(opened, run.info["resize"]),
            shown,
            on_progress=lambda done: bar.update(task, completed=done),
            on_missing=missing.append,
        )
    if missing:
        first = assignments.paths[missing[0]]
        _warn(f"{len(missing)} images cannot be read any more and are grey, the first of them {first}")
    made.write(run.directory.thumbnails_folder)
    return made


def _check_positions(images: np.ndarray, n_images: int, where: Path) -> None:
    if len(np.unique(images)) < len(images) or not ((images >= 0) & (images < n_images)).all():
        raise RunError(f"{where} is damaged (it shows images that the run does not have); delete it")


def _temperature(run: Run) -> float:
    """The temperature of the softmax over cosines; a calibrated one for a classifier's outputs does not apply."""
    if run.directory.calibration_file.exists() and run.calibration.scores == "cosines":
        return run.calibration.temperature
    return run.config.loss.affinity_temperature


def _embeddings(run: Run, n_images: int) -> np.ndarray:
    file = run.directory.embeddings_file
    try:
        run.directory.verify_checksum(file)
        embeddings = read_array(file)
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error}); fit again") from error
    if embeddings.ndim != 2 or len(embeddings) != n_images or embeddings.dtype.kind != "f":
        raise RunError(f"{file} has the shape {embeddings.shape} for {n_images} images; fit again")
    return np.array(embeddings, dtype=np.float32)


def _results(run: Run) -> dict[str, Any]:
    file = run.directory.results_file
    found = _json(file, _read(file)) if file.is_file() else {}
    steps = [step for step in found.values() if isinstance(step, dict) and "accuracy" in step]
    shares = [
        step["accuracy"].get(part, "") if isinstance(step["accuracy"], dict) else ""
        for step in steps
        for part in _PARTS
    ]
    if found.get("method", "kmeans") not in list(METHODS) or not all(map(_is_number, [*shares, found.get("seconds")])):
        raise RunError(f"{file} is damaged (it tells no results); delete it")
    return found


def _records(run: Run) -> list[dict[str, Any]]:
    file = run.directory.metrics_file
    if not file.is_file():
        return []
    records = [_json(file, line) for line in _read(file).splitlines()]
    for record in records:
        if not isinstance(record.get("stage"), str) or not all(map(_is_number, (record | {"stage": 0}).values())):
            raise RunError(f"{file} is damaged (an epoch of no stage, or figures that are none); delete it")
    return records


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{file} is damaged ({error}); delete it") from error


def _json(file: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file} is damaged ({error}); delete it") from error
    if not isinstance(found, dict):
        raise RunError(f"{file} is damaged (it holds a {type(found).__name__}); delete it")
    return found


def _warn(message: str) -> None:
    warnings.warn(message, PromptCALWarning, stacklevel=2)
