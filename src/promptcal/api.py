"""The Python interface: one keyword-only function for each command."""

import functools
import inspect
import numbers
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_origin

import numpy as np
from rich.console import Console

from promptcal.config import AUTO
from promptcal.config.schema import MOST_CLASSES
from promptcal.data import ImageSet, benchmarks, read_labels
from promptcal.data.check import MAX_DISTANCE, MAX_SIDE, CheckReport, check_images
from promptcal.discovery.class_count import ClassCount
from promptcal.errors import ArgumentError, ConfigError, DataError, LabelError, shorten
from promptcal.experiments.cells import Job
from promptcal.experiments.document import DocumentReport, write_document
from promptcal.experiments.jobs import State
from promptcal.experiments.table_request import TableRequest
from promptcal.experiments.tables import TableReport, list_tables, make_table, planned
from promptcal.exporters import export_run
from promptcal.metrics import DiscoveryAccuracy, discovery_accuracy
from promptcal.pipeline.apply_names import NamingResult, apply_names, undo_names
from promptcal.pipeline.benchmark import run_benchmark
from promptcal.pipeline.class_estimate import count_classes_of
from promptcal.pipeline.cluster import run_cluster
from promptcal.pipeline.fit import run_fit
from promptcal.pipeline.request import (
    BenchmarkRequest,
    ClusterRequest,
    EmbedRequest,
    EstimateRequest,
    FitRequest,
    PredictShardsRequest,
    RunRequest,
)
from promptcal.pipeline.shard_commands import run_embed, run_predict_shards
from promptcal.report.build import Report, write_report
from promptcal.report.class_count_curves import write_class_count
from promptcal.run.assignments import Assignments
from promptcal.run.inference import Run
from promptcal.run.results import Evaluation, Scores
from promptcal.runtime import distributed, files
from promptcal.runtime.arguments import check_argument, check_names, check_output_file, checked
from promptcal.runtime.free_memory import return_freed_memory
from promptcal.runtime.phases import REPORT
from promptcal.runtime.progress import show_progress
from promptcal.shards.process import ShardSummary

PathOrText = str | PathLike[str]


def _takes_options_of(kind: type[Any]) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Make a function of a request one of its options, with their signature, and list them in the docstring."""

    def decorate(function: Callable[[Any], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*unnamed: Any, **options: Any) -> Any:
            return function(_request(kind, options, function.__name__, unnamed))

        listed = "".join(f"\n    {option.name}: {_help_in_python(option, kind)}" for option in _sorted_fields(kind))
        text, _, returns = inspect.cleandoc(function.__doc__ or "").partition("\n\nReturns:")
        call.__doc__ = f"{text}\n\nArgs:{listed}\n\nReturns:{returns}\n"
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            _parameters(kind), return_annotation=function.__annotations__["return"]
        )
        return call

    return decorate


def _help_in_python(option: Field[Any], kind: type[Any]) -> str:
    """The help of an option, with the names of arguments instead of those of the command line."""
    text: str = option.metadata.get("python") or option.metadata["help"]
    for other in fields(kind):
        flag = other.metadata.get("flag") or f"--{other.name.replace('_', '-')}"
        text = re.sub(rf"{re.escape(flag)}(?![\w-])", f"``{other.name}``", text)
    return text


def _sorted_fields(kind: type[Any]) -> list[Field[Any]]:
    """The options of a request that a user can give: images and labels first, then those that must be given, last those
    of Python only."""

    def rank(option: Field[Any]) -> int:
        of_python_only = option.metadata.get("cli") is False
        steps = (option.metadata.get("argument"), option.metadata.get("first"), option.default is MISSING)
        return next((i for i, holds in enumerate(steps) if holds), 4 if of_python_only else 3)

    return sorted((option for option in fields(kind) if not option.metadata.get("internal")), key=rank)


def _parameters(kind: type[Any]) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
            annotation=option.type,
        )
        for option in _sorted_fields(kind)
    ]


def _request(kind: type[Any], options: dict[str, Any], function: str, unnamed: Sequence[Any] = ()) -> Any:
    parameters = _parameters(kind)
    check_names(function, unnamed, options, parameters)
    if any(parameter.name == "overrides" for parameter in parameters):
        options["overrides"] = () if options.get("overrides") is None else options["overrides"]
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    for name, value in options.items():
        check_argument(name, value, annotations[name])
    lists = {
        name: tuple(value) for name, value in options.items() if get_origin(annotations[name]) in (tuple, Sequence)
    }
    return kind(**{**options, **lists})


@_takes_options_of(FitRequest)
def fit(request: FitRequest) -> Run:
    """Learn the categories of images and write a run directory.

    Images are a folder, a glob pattern, a list of image files, PIL images or arrays, one array (uint8, or float from 0
    to 1; N x H x W, or N x H x W x 1, 3 or 4), or a Hugging Face `datasets.Dataset`. Labels and truth are a file, a
    mapping path -> label, a data frame, or one label per image; empty, missing or -1 means unlabelled. A config
    is a YAML file, or a `Config`, which is then the whole configuration.

    Returns:
        The run, with its assignments, network and report on disk.
    """
    return _reported(run_fit(request), request)


@_takes_options_of(BenchmarkRequest)
def benchmark(request: BenchmarkRequest) -> Run:
    """Fit a benchmark with its preset and score it on its unlabelled training images (transductive).

    ``NAME-inductive`` holds out a tenth of the training images to select an epoch and scores the test images.
    ``NAME-dev`` has only the labelled images of NAME, with half of their classes as new ones, to choose settings on.

    Returns:
        The run; ``run.directory.results()`` has the accuracies.
    """
    return _reported(run_benchmark(request), request)


@_takes_options_of(ClusterRequest)
def cluster(request: ClusterRequest) -> Run:
    """Sort features that another model computed into categories, and write a run directory.

    Features are a file, an array (rows x numbers), a tensor, or a data frame of numbers whose index has the ids.
    Labels and truth are as in `fit`, with ids instead of paths. No network is trained; `predict` takes new features.

    Returns:
        The run, as that of `fit`.
    """
    return _reported(run_cluster(request), request)


def _reported(run: Run, request: RunRequest | ClusterRequest) -> Run:
    """The run, after the first process has written its report."""
    if request.report and distributed.group().is_first:
        started = time.monotonic()
        return_freed_memory()
        make_report(run=run, progress=request.progress)
        run.directory.add_phase(REPORT, time.monotonic() - started)
    return run


@checked
def demo(*, output: PathOrText = "promptcal-demo", **options: Any) -> Run:
    """The benchmark `mini`: included images and backbone, minutes on a CPU, no network. Options as `benchmark`.

    Categories are assigned by the trained read-out, as in `fit`.

    Args:
        output: Run directory to write.
        options: Options of `benchmark`, except ``name``.

    Returns:
        The run, as that of `benchmark`.
    """
    if "name" in options:
        raise ArgumentError("the demo is the benchmark 'mini' and has no option 'name'; use promptcal.benchmark")
    return benchmark(name="mini", output=output, **{"readout": "head", **options})


@checked
def predict(
    *,
    run: PathOrText | Run,
    images: Any,
    output: PathOrText | None = None,
    none_below: float | None = None,
    accept_all: bool = False,
    device: str | None = None,
    skip_unreadable: bool = False,
    progress: bool = True,
) -> Assignments:
    """Assign new images to the categories of a finished run, or to none of them.

    Args:
        run: A run directory.
        images: As in `fit`, or one image file.
        output: CSV file to write.
        none_below: Images are in none of the categories if their cosine with the nearest centroid is below this; by
            default the run's own threshold, which 95 % of its unlabelled images reach.
        accept_all: Use no threshold.
        device: auto, cpu, cuda, mps; by default the run's.
        skip_unreadable: Skip images that cannot be read instead of stopping.
        progress: Show progress.

    Returns:
        The category of each image with its confidence; ``similarity`` and ``accepted`` say how close it is.
    """
    loaded = run if isinstance(run, Run) else Run(run, device)
    if output is not None:
        check_output_file(output)
    assignments = loaded.predict(
        images, none_below=none_below, accept_all=accept_all, skip_unreadable=skip_unreadable, progress=progress
    )
    if output is not None:
        files.write_text(Path(output), assignments.to_csv())
    return assignments


@_takes_options_of(PredictShardsRequest)
def predict_shards(request: PredictShardsRequest) -> ShardSummary:
    """Assign every image of a source of any size to the categories of a finished run, and write parquet shards.

    The source is a folder, tar or parquet files, a list of images, or a folder of `embed`. Finished shards are kept. A
    script that calls this with several workers needs ``if __name__ == "__main__":``, because they import it.

    Returns:
        Numbers of shards and images that are done.
    """
    return run_predict_shards(request)


@_takes_options_of(EmbedRequest)
def embed(request: EmbedRequest) -> ShardSummary:
    """Embed every image of a source of any size, as `predict_shards`: parquet shards with id, path and embedding.

    Returns:
        Numbers of shards and images that are done.
    """
    return run_embed(request)


@checked
def evaluate(*, run: PathOrText | Run, truth: Any) -> DiscoveryAccuracy:
    """Score a finished run against true classes, on the images that had no label.

    Args:
        run: A run directory.
        truth: A CSV file with the columns path,label, a mapping path -> label, or one label per image.

    Returns:
        Accuracies from 0 to 1, NMI and ARI.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    assignments = loaded.assignments()
    all_names, positions = loaded.given_images()
    of_all = read_labels(truth, all_names)
    true_classes = [of_all[i] for i in positions]
    scored = [i for i, t in enumerate(true_classes) if t is not None and not assignments.labelled[i]]
    if not scored:
        raise LabelError("the truth has no class for any unlabelled image of the run; check its paths")
    accuracy = discovery_accuracy(
        np.array([true_classes[i] for i in scored]), assignments.clusters[scored], loaded.info.known_classes
    )
    loaded.directory.write_truth(assignments.paths, true_classes)
    Evaluation(n_scored=len(scored), accuracy=Scores.of(accuracy)).write(loaded.directory.evaluation_file)
    return accuracy


@checked
def export(*, run: PathOrText | Run, to: str, output: PathOrText, copy: bool = False, progress: bool = True) -> Path:
    """Write the categories of a finished run in a format that other programs read.

    Args:
        run: A run directory.
        to: folders, csv, coco, huggingface, fiftyone-json, embeddings or onnx.
        output: The file or folder to write; must not exist yet.
        copy: Copy images instead of linking to them.
        progress: Show progress.

    Returns:
        The output.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    export_run(loaded, to, Path(output), copy=copy, console=Console(stderr=True, quiet=not progress))
    return Path(output)


@checked
def name(*, run: PathOrText | Run, labels: Any = None, undo: bool = False) -> NamingResult:
    """Apply names and merges to a finished run without training; its exports, report and predictions then use them.

    A discovered category gets the name that most of its labelled images have. A category more than half of whose images
    have the name of another one is merged into it. Other labelled images move to the category of their label, which is
    a new one if no category has this name. Nothing is written if the labels contradict each other; the same labels
    again change nothing.

    Args:
        run: A run directory.
        labels: As in `fit`; usually the file that the report downloads.
        undo: Restore the run as its fit wrote it, instead of applying labels.

    Returns:
        What was named, merged, added and moved.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    if undo != (labels is None):
        raise ConfigError("give either labels to apply, or undo (--undo)")
    if undo:
        undo_names(path)
        return NamingResult({}, {}, 0)
    return apply_names(path, labels)


@_takes_options_of(EstimateRequest)
def estimate_classes(request: EstimateRequest) -> ClassCount:
    """Estimate the number of categories, known and new together, with an interval.

    Several estimators are tried on known classes that are hidden, and the one that counts them best is used.

    Returns:
        The number, its interval, and the reason.
    """
    if request.output is not None and Path(request.output).exists() and not Path(request.output).is_dir():
        raise DataError(f"the output {request.output} is a file; give a folder")
    if request.run is not None and (request.backbone is not None or request.weights is not None):
        raise ConfigError("a run has its own backbone; give either the run or a backbone and its weights")
    count = count_classes_of(request)
    if request.output is not None:
        write_class_count(Path(request.output), count)
    return count


@checked
def make_report(
    *,
    run: PathOrText | Run,
    output: PathOrText | None = None,
    shards: PathOrText | None = None,
    progress: bool = True,
) -> Report:
    """Write the report of a finished run: one HTML file that needs no server and no network.

    Args:
        run: A run directory.
        output: HTML file to write; by default `report.html` in the run directory.
        shards: Folder of shards of `predict_shards`, whose numbers of images the report shows, too.
        progress: Show progress.

    Returns:
        The path of the report, its size, and how many images it shows.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    console = Console(stderr=True, quiet=not progress)
    folder = None if shards is None else Path(shards)
    if output is not None:
        return write_report(loaded, check_output_file(output), console, folder)
    with loaded.directory.locked():
        return write_report(loaded, None, console, folder)


@checked
def make_figure(
    *,
    name: str,
    run: PathOrText | Run | Sequence[PathOrText | Run],
    output: PathOrText | None = None,
    token: str | Sequence[str] = "cls",
    split: str = "train",
    root: PathOrText | None = None,
    device: str = "auto",
    progress: bool = True,
) -> Path:
    """Write a figure of one run, or of several runs side by side, for a paper.

    Args:
        name: tsne, confusion, attention, neighbours or curves.
        run: A run directory, or several of runs on the same images.
        output: PNG, SVG or PDF file to write; by default `figures/NAME.png` in the directory of the first run.
        token: Of `tsne`: cls, prompts (the supervised prompts, [P]), unsupervised-1, ..., or several of these.
        split: train: the images of the fit; test: the test images of its benchmark, assigned as by `predict`.
        root: Folder with the datasets, as in `benchmark`.
        device: auto, cpu, cuda or mps.
        progress: Show progress.

    Returns:
        The path of the figure.
    """
    from promptcal.report.figures import write_figure  # imports matplotlib, which takes a while

    given = [run] if isinstance(run, str | PathLike | Run) else list(run)
    tokens = [token] if isinstance(token, str) else list(token)
    if not given or not tokens:
        raise ArgumentError("a figure needs a run and a token; the list of runs or of tokens is empty")
    return write_figure(
        name,
        [each if isinstance(each, Run) else Run(each, device) for each in given],
        None if output is None else check_output_file(output),
        Console(stderr=True, quiet=not progress),
        tokens=tokens,
        split=split,
        root=None if root is None else Path(root),
    )


@checked
def check(
    *,
    images: Any,
    labels: Any = None,
    n_classes: int | Literal["auto"] | None = None,
    output: PathOrText | None = None,
    min_side: int = 32,
    near_distance: int = 4,
    progress: bool = True,
) -> CheckReport:
    """Check images and labels before a fit: unreadable files, duplicates, conflicting labels, imbalance.

    Args:
        images: As in `fit`.
        labels: As in `fit`.
        n_classes: As in `fit`; whether the images and labels fit this number.
        output: JSON file to write.
        min_side: Images with a shorter side of fewer pixels are reported as tiny.
        near_distance: Near duplicates differ in at most this many of 64 bits of a perceptual hash, 0 to 16.
        progress: Show progress.

    Returns:
        The findings; ``problems`` would harm a fit.
    """
    if not 0 <= near_distance <= MAX_DISTANCE:
        raise ConfigError(f"the near distance must be 0 to {MAX_DISTANCE}, not {shorten(near_distance)}")
    if not 0 <= min_side <= MAX_SIDE:
        raise ConfigError(f"--min-side must be 0 to {MAX_SIDE:,} pixels, not {shorten(min_side)}")
    if isinstance(n_classes, numbers.Integral) and n_classes > MOST_CLASSES:
        raise ConfigError(f"--n-classes must be at most {MOST_CLASSES:,}, not {shorten(n_classes)}")
    if output is not None:
        check_output_file(output)
    image_set = ImageSet.of(images)
    console = Console(stderr=True, quiet=not progress)
    label_names = read_labels(labels, image_set, console)
    with show_progress(console, "checking", len(image_set)) as show:
        report = check_images(
            image_set,
            label_names,
            n_classes=None if n_classes == AUTO else n_classes,
            min_side=min_side,
            near_distance=near_distance,
            on_progress=show,
        )
    if output is not None:
        files.write_json(Path(output), report.as_dict())
    return report


@checked
def datasets(*, root: PathOrText | None = None) -> list[benchmarks.BenchmarkListing]:
    """The benchmarks, and which of them are present.

    Args:
        root: Folder with the datasets; by default the environment variable PROMPTCAL_DATA, or ./data.

    Returns:
        The benchmarks in their order.
    """
    return benchmarks.list_benchmarks(root)


@_takes_options_of(TableRequest)
def table(request: TableRequest) -> TableReport:
    """Make a table: run what is missing, resume what was interrupted, reuse what is finished.

    Writes CSV, Markdown and a bar plot into ``output``/reports. A run that fails does not stop the others; it is in
    ``summary.problems`` of the result.

    Returns:
        The table, and the files that were written.
    """
    return make_table(request)


@checked
def table_document(*, document: PathOrText, **options: Any) -> DocumentReport:
    """Fill the tables of a Markdown file, between ``<!-- table: NAME -->`` and ``<!-- end -->``. Options as `table`.

    The YAML file ``name`` may define several tables.
    """
    return write_document(_request(TableRequest, options, "table_document"), Path(document))


def table_runs(**options: Any) -> list[tuple[Job, State]]:
    """The runs that `table` needs and their states, without running anything. Options as `table`."""
    return planned(_request(TableRequest, options, "table_runs"))


def tables(**options: Any) -> dict[str, list[State]]:
    """The tables of the package by name, and the states of their runs. Options as `table`."""
    return list_tables(_request(TableRequest, options, "tables"))
