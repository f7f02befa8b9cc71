"""The pages of the report for the categories as they are now; computed in a separate process (`side_process`)."""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from rich.console import Console

from promptcal.app.label_state import NO_LABEL, LabelState
from promptcal.report.array_files import write_arrays
from promptcal.report.attention_panels import AttentionMaps, overlay_sheet
from promptcal.report.build import page_records
from promptcal.report.embedding_map import N_ITERATIONS, compute_map
from promptcal.report.page_data import image_columns
from promptcal.report.report_inputs import ReportInputs
from promptcal.report.selection import select_images
from promptcal.run.assignments import Assignments
from promptcal.run.inference import Run
from promptcal.runtime import files
from promptcal.runtime.seeds import derive_seed

OnProgress = Callable[[int, int], None]
_STEPS = 4  # of the pages: the run, neighbours, measures of images, measures of categories
_NONE = "none of these"
_COLUMNS = ("cluster", "labelled", "doubtful", "truth", "order", "shown", "neighbours", "neighboursPerImage")


def embedding_map(path: str, on_progress: OnProgress) -> tuple[np.ndarray, np.ndarray]:
    """Images of the run and their coordinates, which are then stored."""
    run = Run(path, "cpu", warn_if_unfinished=False)
    shown = select_images(run.assignments())
    seed = derive_seed(run.config.seed, "map") % 2**32
    coordinates = compute_map(
        run.embeddings()[shown], seed=seed, on_progress=lambda done: on_progress(done, N_ITERATIONS)
    )
    write_arrays(run.directory.map_file, images=shown, coordinates=coordinates)
    return shown, coordinates


@lru_cache(maxsize=1)
def _report_inputs(path: str, changed: float) -> tuple[ReportInputs, AttentionMaps]:
    inputs = ReportInputs.load(Run(path, "cpu", warn_if_unfinished=False), Console(quiet=True))
    return inputs, inputs.attention()


def report_pages(path: str, state: LabelState, on_progress: OnProgress) -> tuple[str, bytes | None]:
    """The data of the report's pages for the categories as they are now (JSON), and the sheet of attention maps."""
    changed = (Path(path) / "run.json").stat().st_mtime
    on_progress(0, _STEPS)
    inputs, maps = _report_inputs(path, changed)
    on_progress(1, _STEPS)
    stored = inputs.analysis
    now = current_assignments(state, stored.assignments.paths)
    is_same = now.names == stored.assignments.names and np.array_equal(now.clusters, stored.assignments.clusters)
    known = [name for name, is_known in zip(now.names, now.known, strict=True) if is_known]
    advice = stored.stored_categories if is_same else None
    analysis = stored.with_categories(now, known, advice)
    on_progress(2, _STEPS)
    columns = image_columns(analysis, inputs.thumbnails.sizes)
    on_progress(3, _STEPS)
    data = {**page_records(inputs, analysis, maps), "images": {name: columns[name] for name in _COLUMNS}}
    data["numbers"] = state.active
    return json.dumps(files.finite(data), separators=(",", ":")), overlay_sheet(maps)


def current_assignments(state: LabelState, paths: list[str]) -> Assignments:
    """The categories as they are shown; images in none of them are in a category of their own, the last one."""
    active, found, shown = state.active, state.predictions, state.category
    number = np.full(len(state.categories) + 1, -1)
    number[active] = np.arange(len(active))
    names = [state.categories[c].name for c in active]
    known = [state.categories[c].known for c in active]
    if (shown < 0).any():
        names, known = [*names, _NONE if _NONE not in names else f"({_NONE})"], [*known, False]
    return Assignments(
        paths,
        np.where(shown < 0, len(active), number[shown]),
        found.confidence,
        names,
        known,
        state.labels != NO_LABEL,
        number[found.second],
        found.second_confidence,
        stability=found.stability,
    )
