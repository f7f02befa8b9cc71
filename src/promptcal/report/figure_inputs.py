"""What a figure shows: the same images in each of its runs, their own or the test images of their benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from promptcal.data import ImageSet
from promptcal.data.benchmarks import load_benchmark
from promptcal.data.benchmarks.benchmark_data import load_test_images
from promptcal.data.benchmarks.spec import INDUCTIVE
from promptcal.data.sources import FileSource
from promptcal.errors import ConfigError, DataError
from promptcal.models.tokens import CLS, token_names
from promptcal.report.attention_panels import AttentionMaps, attention_maps, examples_of
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.report.contact_sheets import centre_square
from promptcal.report.report_inputs import ReportInputs, map_with_progress
from promptcal.report.selection import N_EXAMPLES, sample_evenly, select_images
from promptcal.run import Run, RunResults

_SIDE = 126  # pixels of an image in a figure


@dataclass(frozen=True)
class FigureRun:
    """One run in a figure.

    ``embeddings`` are those of the images ``analysis.shown``, by token. ``stored`` are the inputs of the run's report,
    with what is stored in the run directory; None if other images are shown. ``test`` are the test images, if they are
    shown.
    """

    label: str
    run: Run
    analysis: ClusterAnalysis
    embeddings: Mapping[str, np.ndarray]
    stored: ReportInputs | None
    test: ImageSet | None
    console: Console

    def coordinates(self, token: str) -> np.ndarray:
        """The map of the shown images by this token's embeddings; only that of the class token is stored."""
        if token == CLS and self.stored is not None:
            return self.stored.coordinates()
        return map_with_progress(self.embeddings[token], self.run, self.console)

    def tile(self, image: int) -> np.ndarray:
        """A small square of an image."""
        if self.test is not None:
            pixels = self.test.image(image)
        else:
            assert self.stored is not None
            positions = np.flatnonzero(self.stored.thumbnails.images == image)
            pixels = self.stored.thumbnails.tile(int(positions[0]))
        return centre_square(np.asarray(pixels), _SIDE)

    def neighbours(self, images: np.ndarray) -> np.ndarray:
        """The nearest shown images of some of the shown images, by the class token."""
        shown = self.analysis.shown
        positions = np.argsort(shown)[np.searchsorted(np.sort(shown), images)]
        return shown[self.analysis.neighbours[positions]]

    def attention(self, first: AttentionMaps | None = None) -> AttentionMaps:
        """Attention maps of the same images as the ``first`` run's; of this run's own examples if it is the first."""
        if self.test is None and first is None:
            assert self.stored is not None
            return self.stored.attention()
        examples = None if first is None else first.examples
        if self.test is not None:
            chosen = one_of_each(self.groups(), N_EXAMPLES) if examples is None else examples.images
            examples = examples_of(self.run, self.test, chosen)
        elif examples is not None:
            size, first_size = self.run.network.vit.preprocessing.image_size, examples.pixels.shape[1]
            if size != first_size:
                raise DataError(
                    f"{self.run.path} has images of {size} pixels and the first run of {first_size}; give runs with "
                    "the same model.image_size, or add --split test"
                )
        return attention_maps(self.run, RunResults.read(self.run.directory.results_file), examples)

    def groups(self) -> np.ndarray:
        """A number for each shown unlabelled image, -1 for the others: its true class, or its cluster if no true class
        is known."""
        analysis = self.analysis
        eligible = ~analysis.assignments.labelled & np.isin(np.arange(len(analysis.assignments)), analysis.shown)
        by_class = np.where(eligible, analysis.true_class_numbers, -1)
        return by_class if (by_class >= 0).any() else np.where(eligible, analysis.assignments.clusters, -1)


@dataclass(frozen=True)
class FigureInputs:
    """The runs and the tokens that a figure shows."""

    runs: list[FigureRun]
    tokens: list[str]

    @classmethod
    def load(
        cls,
        runs: Sequence[Run],
        console: Console,
        *,
        tokens: Sequence[str] = (CLS,),
        split: str = "train",
        root: Path | None = None,
    ) -> "FigureInputs":
        _check_tokens(runs, tokens)
        shown: list[FigureRun] = []
        if split == "test":
            images, test_truth = _test_images(runs, root)
            for run, label in zip(runs, _labels(runs), strict=True):
                shown.append(_with_test_images(run, label, images, test_truth, tokens, shown[:1], console))
        else:
            stored = [ReportInputs.load(run, console) for run in runs]
            truth = _common_truth(stored)
            for inputs, label in zip(stored, _labels(runs), strict=True):
                shown.append(_with_own_images(inputs, label, truth, tokens, shown[:1], root))
        return cls(shown, [*tokens])


def one_of_each(groups: np.ndarray, n: int) -> np.ndarray:
    """The middle image of each group, from at most ``n`` groups; images of group -1 are left out."""
    members = [np.flatnonzero(groups == group) for group in np.unique(groups[groups >= 0])]
    return sample_evenly(np.array([m[len(m) // 2] for m in members], dtype=np.int64), n)


def _labels(runs: Sequence[Run]) -> list[str]:
    """The titles of the methods, or the names of the folders if two runs have the same method."""
    for labels in ([run.method.title for run in runs], [run.path.resolve().name for run in runs]):
        if len(set(labels)) == len(labels):
            return labels
    return [str(run.path) for run in runs]


def _check_tokens(runs: Sequence[Run], tokens: Sequence[str]) -> None:
    if [*tokens] == [CLS]:
        return
    with_network = [run for run in runs if run.method.takes_images]
    present = list(dict.fromkeys([CLS, *(name for run in with_network for name in token_names(run.network.vit))]))
    unknown = [token for token in tokens if token not in present]
    if unknown:
        whose = f"the network of {runs[0].path} has" if len(runs) == 1 else "the networks of these runs have"
        raise ConfigError(f"{whose} no token {unknown[0]}; choose from {', '.join(present)}")


def _test_images(runs: Sequence[Run], root: Path | None) -> tuple[ImageSet, list[str]]:
    names = [run.info.benchmark for run in runs]
    for run, name in zip(runs, names, strict=True):
        if name is None:
            raise DataError(
                f"{run.path} names no benchmark in its run.json, so its test images are not known; use a run of "
                "`promptcal benchmark` from version 0.3 on, or leave out --split test"
            )
    first, *others = (name.removesuffix(INDUCTIVE) for name in names if name is not None)
    for run, other in zip(runs[1:], others, strict=True):
        if other != first:
            raise _different_images(runs[0], run)
    return load_test_images(first, root)


def _with_test_images(
    run: Run,
    label: str,
    images: ImageSet,
    truth: list[str],
    tokens: Sequence[str],
    first: Sequence[FigureRun],
    console: Console,
) -> FigureRun:
    """Test images are assigned to the run's clusters as `predict` assigns new images."""
    read = list(dict.fromkeys([CLS, *_present(run, tokens)]))
    features = run.embed_tokens(images, read, progress=not console.quiet)
    assignments = run.assign(images.names, features[:, 0])
    by_token = dict(zip(read, features.cpu().numpy().swapaxes(0, 1), strict=True))
    shown = first[0].analysis.shown if first else select_images(assignments)
    temperature, known = run.calibration.temperature, run.info.known_classes
    analysis = ClusterAnalysis(assignments, by_token[CLS], known, temperature, [*truth], shown)
    return FigureRun(label, run, analysis, {t: e[shown] for t, e in by_token.items()}, None, images, console)


def _with_own_images(
    inputs: ReportInputs,
    label: str,
    truth: list[str | None] | None,
    tokens: Sequence[str],
    first: Sequence[FigureRun],
    root: Path | None,
) -> FigureRun:
    """The images that the report shows; of a large run, those that the report of the first run shows."""
    run, shown = inputs.run, inputs.analysis.shown
    is_same = not first or np.array_equal(np.sort(shown), np.sort(first[0].analysis.shown))
    analysis = replace(inputs.analysis, truth=truth, shown=shown if is_same else first[0].analysis.shown)
    embeddings = {CLS: analysis.embeddings[analysis.shown]}
    others = [token for token in _present(run, tokens) if token != CLS]
    if others:
        images = _own_images(run, root).subset(analysis.shown.tolist())
        features = run.embed_tokens(images, others, progress=not inputs.console.quiet)
        embeddings |= zip(others, features.cpu().numpy().swapaxes(0, 1), strict=True)
    stored = replace(inputs, analysis=analysis) if is_same else None
    return FigureRun(label, run, analysis, embeddings, stored, None, inputs.console)


def _present(run: Run, tokens: Sequence[str]) -> list[str]:
    """Those of the tokens that the network has; it is not loaded for the class token alone."""
    if [*tokens] == [CLS]:
        return [CLS]
    names = token_names(run.network.vit) if run.method.takes_images else [CLS]
    return [token for token in tokens if token in names]


def _own_images(run: Run, root: Path | None) -> ImageSet:
    """The images that the run was fitted to, in the order of its assignments."""
    names, positions = run.given_images()
    if run.info.benchmark is None:
        return ImageSet(run.assignments().paths, FileSource(run.image_files()))
    images = load_benchmark(run.info.benchmark, root).train
    if images.names != names.names:
        raise DataError(f"the training images of {run.info.benchmark} are not those of {run.path}; give its --root")
    return images.subset(positions)


def _common_truth(stored: Sequence[ReportInputs]) -> list[str | None] | None:
    """The true classes of the images, which must be the same in all runs; a run may lack them."""
    for other in stored[1:]:
        if other.analysis.assignments.paths != stored[0].analysis.assignments.paths:
            raise _different_images(stored[0].run, other.run)
    truths = [inputs.analysis.truth for inputs in stored if inputs.analysis.truth is not None]
    if any(truth != truths[0] for truth in truths):
        raise DataError("the runs have different true classes; run `promptcal evaluate RUN --truth FILE` for each run")
    return truths[0] if truths else None


def _different_images(first: Run, other: Run) -> DataError:
    return DataError(f"{first.path} and {other.path} are runs on different images; give runs on the same images")
