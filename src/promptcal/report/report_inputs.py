"""What a report and its figures are made from: read from the run directory, or computed and stored there."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from promptcal.report.array_files import write_arrays
from promptcal.report.attention_panels import AttentionMaps, Examples, attention_maps
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.embedding_map import N_ITERATIONS, compute_map, read_map
from promptcal.report.thumbnails import Thumbnails, check_positions
from promptcal.run import Assignments, Run, RunResults
from promptcal.run.categories import CategoryTable
from promptcal.runtime.progress import show_progress
from promptcal.runtime.seeds import derive_seed


@dataclass(frozen=True)
class ReportInputs:
    """A finished run with its results, its epoch records, its thumbnails and the analysis of its clusters."""

    run: Run
    results: RunResults
    records: list[dict[str, Any]]
    thumbnails: Thumbnails
    analysis: ClusterAnalysis
    console: Console

    @classmethod
    def load(cls, run: Run, console: Console) -> "ReportInputs":
        assignments = run.assignments()
        thumbnails = Thumbnails.read(run.directory.thumbnails_folder, len(assignments))
        is_for_cosines = run.calibration.scores == "cosines"
        temperature = run.calibration.temperature if is_for_cosines else run.config.loss.affinity_temperature
        results = RunResults.read(run.directory.results_file)
        analysis = ClusterAnalysis(
            assignments,
            np.asarray(run.mapped_embeddings(len(assignments))),
            run.info.known_classes,
            temperature,
            run.truth_of(assignments.paths),
            thumbnails.images,
            _fitting(results.categories, assignments),
        )
        return cls(run, results, run.records(), thumbnails, analysis, console)

    def coordinates(self) -> np.ndarray:
        """The map of the shown images: the stored map, or a new one that is then stored."""
        directory, shown = self.run.directory, self.analysis.shown
        stored = read_map(directory.map_file, shown, directory.embeddings_file)
        if stored is not None:
            return stored
        computed = map_with_progress(self.analysis.embeddings[shown], self.run, self.console)
        write_arrays(directory.map_file, images=shown, coordinates=computed)
        return computed

    def attention(self) -> AttentionMaps:
        """The stored maps, which need no weights, or new ones, which are stored if no step is missing."""
        directory = self.run.directory
        examples = Examples.read(directory.examples_file)
        if examples is not None:
            check_positions(examples.images, len(self.analysis.assignments), directory.examples_file)
            stored = AttentionMaps.read(directory.attention_file, examples, directory.model_file)
            if stored is not None:
                return stored
        computed = attention_maps(self.run, self.results, examples)
        if computed.steps and not computed.missing:
            write_arrays(directory.attention_file, steps=np.array(computed.steps), maps=computed.maps)
        return computed


def _fitting(categories: CategoryTable | None, assignments: Assignments) -> CategoryTable | None:
    """The stored description, if it is of these categories."""
    if categories is None or [c.name for c in categories.categories] != assignments.names:
        return None
    n = len(assignments.names)
    return categories if all(0 <= m.cluster < n and 0 <= m.into < n for m in categories.merges) else None


def map_with_progress(embeddings: np.ndarray, run: Run, console: Console) -> np.ndarray:
    """The map of the embeddings with the seed of the run."""
    seed = derive_seed(run.config.seed, "map") % 2**32
    with show_progress(console, "map", N_ITERATIONS) as show:
        return compute_map(embeddings, seed=seed, on_progress=show)
