"""From a finished run directory to its report: gather what the run left, make what is missing, write the page."""

import hashlib
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from promptcal._version import __version__
from promptcal.data import ImageSet, StreamedImages
from promptcal.data.sources import FileSource
from promptcal.errors import PromptCALWarning, RunError
from promptcal.report.attention_panels import AttentionMaps, Examples, attention_maps, example_record, overlay_sheet
from promptcal.report.changes import changes_record
from promptcal.report.data import ClusterAnalysis, page_data
from promptcal.report.html import render
from promptcal.report.map import STEPS, plane, read_map, write_map
from promptcal.report.thumbnails import Thumbnails, chosen_images, make_thumbnails
from promptcal.run.inference import Run, reject_path_traversal
from promptcal.runtime import files
from promptcal.runtime.arrays import read_array
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed


@dataclass(frozen=True)
class Report:
    path: Path
    n_bytes: int
    n_images: int
    n_shown: int


@dataclass(frozen=True)
class ReportInputs:
    """A run with all that its report and figures are made of."""

    run: Run
    found: ClusterAnalysis
    thumbnails: Thumbnails | None
    results: Any
    records: list[dict[str, Any]]
    console: Console

    @classmethod
    def of(cls, run: Run, console: Console) -> "ReportInputs":
        assignments = run.assignments()
        thumbnails = Thumbnails.read(run.directory.thumbnails_folder)
        if thumbnails is None:
            thumbnails = _thumbnails_from_folder(run, console)
        else:
            _refuse_other_places(thumbnails.images, len(assignments), run.directory.thumbnails_folder)
        found = ClusterAnalysis(
            assignments,
            _embeddings(run, len(assignments)),
            run.info.known_classes,
            _temperature(run),
            run.truth(),
            chosen_images(assignments) if thumbnails is None else thumbnails.images,
        )
        return cls(run, found, thumbnails, run.directory.results(), run.records(), console)

    def coordinates(self) -> np.ndarray:
        """The map of the shown images: the stored one, or made now and stored."""
        directory, shown = self.run.directory, self.found.shown
        stored = read_map(directory.map_file, shown, directory.embeddings_file)
        if stored is not None:
            return stored
        with progress_bar(self.console) as bar:
            task = bar.add_task("map", total=STEPS, note="")
            made = plane(
                self.found.embeddings[shown],
                seed=derive_seed(self.run.config.seed, "map") % 2**32,
                on_progress=lambda done: bar.update(task, completed=done),
            )
        write_map(directory.map_file, shown, made)
        return made

    def attention(self) -> AttentionMaps:
        """The stored maps, which need no weights, or made now and stored if they are complete."""
        directory = self.run.directory
        examples = Examples.read(directory.examples_file)
        if examples is not None:
            _refuse_other_places(examples.images, len(self.found.assignments), directory.examples_file)
        stored = examples and AttentionMaps.read(directory.attention_file, examples, directory.model_file)
        if stored:
            return stored
        made = attention_maps(self.run, examples)
        if made.steps and not made.missing:
            made.write(directory.attention_file)
        return made


def make_report(run: Run, output: Path | None, console: Console) -> Report:
    """Write the page to ``output``, by default `report.html` in the run directory."""
    path = run.directory.report_file if output is None else output
    if not path.absolute().parent.is_dir():
        raise RunError(f"the folder of {path} does not exist; make it first")
    material = ReportInputs.of(run, console)
    found, thumbnails = material.found, material.thumbnails
    maps = material.attention()
    data = page_data(
        found,
        title=run.path.absolute().name,
        config=run.config,
        results=material.results,
        records=material.records,
        coordinates=material.coordinates(),
        tiles=None if thumbnails is None else thumbnails.layout(),
        attention=example_record(maps),
        changes=changes_record(run.directory, found),
        # decisions the browser keeps are for these very clusters
        fingerprint=hashlib.sha256(run.directory.assignments_file.read_bytes()).hexdigest(),
        root=run.info.root,
        folder=run.info.folder,
        next_step=_next_step(run),
        version=__version__,
    )
    sheets, overlays = [] if thumbnails is None else thumbnails.sheets, overlay_sheet(maps)
    data["bytes"] = len(render(data, sheets, overlays).encode("utf-8"))  # which the page itself states
    files.write_text(path, render(data, sheets, overlays))
    return Report(path, path.stat().st_size, len(found.assignments), len(found.shown))


def _next_step(run: Run) -> str:
    """How to go on from this run with the labels that its page gives."""
    here, root = run.path.absolute(), run.info.root
    onward = here.with_name(f"{here.name}-2")
    if root is None:  # the images came as an array or a dataset
        return f'promptcal.fit(images=..., labels="labels.csv", start_from={str(here)!r}, output={str(onward)!r})'
    words = ["promptcal", "fit", root, "--labels", "labels.csv", "--from", str(here), "--output", str(onward)]
    return shlex.join(words)


def _thumbnails_from_folder(run: Run, console: Console) -> Thumbnails | None:
    """For a run made before thumbnails were kept: from its images, if they are still there; kept from then on."""
    root = run.info.root
    folder = None if root is None else Path(root)
    if folder is None or not folder.is_dir():
        _warn(f"{run.path} kept no thumbnails and its image folder is not there, so its report has no pictures")
        return None
    _warn(f"{run.path} kept no thumbnails; they are made now from {folder}")
    assignments = run.assignments()
    reject_path_traversal(assignments.paths, run.path)
    opened = ImageSet(assignments.paths, FileSource([folder / path for path in assignments.paths]), folder)
    shown = chosen_images(assignments)
    missing: list[int] = []
    with progress_bar(console) as bar:
        task = bar.add_task("thumbnails", total=len(shown), note="")
        made = make_thumbnails(
            StreamedImages(opened, run.info.resize),
            shown,
            on_progress=lambda done: bar.update(task, completed=done),
            on_missing=missing.append,
        )
    if missing:
        first = assignments.paths[missing[0]]
        _warn(f"{len(missing)} images cannot be read any more and are grey, the first of them {first}")
    made.write(run.directory.thumbnails_folder)
    return made


def _refuse_other_places(images: np.ndarray, n_images: int, where: Path) -> None:
    if len(np.unique(images)) < len(images) or not ((images >= 0) & (images < n_images)).all():
        raise RunError(f"{where} is damaged (it shows images that the run does not have); delete it")


def _temperature(run: Run) -> float:
    if run.calibration.scores == "cosines":
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
        raise RunError(f"{file} is of shape {embeddings.shape} for {n_images} images; fit again")
    return np.array(embeddings, dtype=np.float32)


def _warn(message: str) -> None:
    warnings.warn(message, PromptCALWarning, stacklevel=2)
