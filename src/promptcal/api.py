"""The verbs, one keyword-only function each; the command line and the estimator call these."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from promptcal.config.schema import Config, load_config, method_preset
from promptcal.data import ImageSet, benchmarks, embedded_set, label_half, read_labels, removed_labels
from promptcal.data.check import MAX_DISTANCE, CheckReport, check_images
from promptcal.discovery.class_count import ClassCount
from promptcal.errors import ConfigError, DataError, LabelError, PromptCALWarning, RunError
from promptcal.experiments.document import DocumentReport, write_document
from promptcal.experiments.jobs import Job, State
from promptcal.experiments.tables import TableListing, TableReport, TableRequest, list_tables, make_table, planned
from promptcal.exporters import export_run
from promptcal.metrics import DiscoveryAccuracy, discovery_accuracy
from promptcal.pipeline.class_count import ClassCounter, count_in_backbone, count_in_run
from promptcal.pipeline.fit import Fit
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Inductive, Problem
from promptcal.pipeline.shared_warmup import SharedWarmup
from promptcal.report.build import Report, ReportInputs, make_report
from promptcal.report.class_count_curves import write_class_count
from promptcal.report.figures import write_figure
from promptcal.run.inference import Assignments, Run, RunDirectory
from promptcal.runtime import distributed, files
from promptcal.runtime.progress import progress_bar

DEMO_KNOWN = 5
TABLES_OUTPUT = Path("runs/tables")


@distributed.distributed_entry_point
def fit(
    *,
    images: Any,
    output: str | PathLike[str],
    labels: Any = None,
    n_classes: int | Literal["auto"] | None = None,
    method: str | None = None,
    truth: Any = None,
    config: Config | str | PathLike[str] | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    backbone: str | None = None,
    weights: str | PathLike[str] | None = None,
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    deterministic: bool = False,
    start_from: str | PathLike[str] | None = None,
    warmup_from: str | PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stop_after: float | None = None,
    skip_unreadable: bool = False,
    inductive: Inductive | None = None,
    progress: bool = True,
) -> Run:
    """Learn the categories of ``images`` and write a run directory.

    Args:
        images: A folder, a glob pattern, a list of image files, a uint8 array N x H x W x 3, or a Hugging Face
            `datasets.Dataset`.
        output: The run directory to write.
        labels: A CSV, TSV or parquet file with the columns path,label, a mapping path -> label, or one label per
            image; empty, missing or -1 = unlabelled. Without it, class folders beside one named ``unlabelled``
            are the labels, and so is the column ``label`` of a dataset.
        n_classes: Number of categories, known and new together, or "auto" to estimate it as `estimate_classes` does.
        method: promptcal (the default), promptcal-warmup, gcd, simgcd, orca, uno, rankstats or kmeans.
        truth: True classes in the same form as ``labels``, used only to report accuracy.
        config: A YAML file, or a `Config` (which then is the whole configuration).
        preset: Name of a preset to start from.
        overrides: Settings as ``a.b=value``; they win over everything else.
        backbone: timm name of a ViT.
        weights: Local weight file for the backbone.
        seed: Seed of everything random.
        device: auto, cpu, cuda, mps.
        precision: auto, fp32, bf16.
        compile: Compile the network; by default on CUDA where there are steps enough for it to pay.
        deterministic: Only algorithms that repeat themselves bit by bit; slower on a GPU, and a CPU's do anyway.
        start_from: A finished run to go on from with new labels: its settings, its labels where there are no new
            ones, and its weights, of which only the last stage is trained further. Its categories keep their numbers
            and names; what moved is written to ``changes.csv``.
        warmup_from: A run of the same images, labels, seed and settings of stage 1, whose stage 1 is taken over, so
            that runs which differ only in stage 2 need not repeat it.
        resume: Go on with the unfinished run in ``output``; images, labels and settings must be the same.
        overwrite: Discard the run in ``output``, if there is one.
        stop_after: Minutes after which training stops at a checkpoint to resume from (an `Interrupted` is raised).
        skip_unreadable: Leave out images that cannot be read instead of stopping.
        inductive: For the inductive protocol: test images to score, and images to hold out from training.
        progress: Show progress.
    """
    if stop_after is not None and not stop_after > 0:
        raise ConfigError(f"--stop-after takes minutes above 0, not {stop_after}")
    directory = RunDirectory(output)
    group = distributed.group()
    restarts = group.all_reduce_max(distributed.restarts())  # which may differ by machine
    begun = group.on_first(lambda: _begun_before(restarts, directory, overwrite))
    if begun == "finished":
        return group.on_first(lambda: Run(output, device))
    if begun is not None:
        resume, overwrite = True, False
    has_begun = group.on_first(lambda: directory.check_free(resume=resume, overwrite=overwrite))
    earlier = group.on_first(lambda: _earlier(start_from, directory, has_begun, config, preset))
    base = config if earlier is None else earlier.settings(method)
    console = Console(stderr=True, quiet=not (progress and group.is_first))
    image_set = ImageSet.of(images)
    given = read_labels(labels, image_set)
    if earlier is not None:
        given = earlier.merge_labels(given, removed_labels(labels, image_set), image_set.names)
    problem = Problem.of(
        image_set,
        given,
        None if truth is None else read_labels(truth, image_set),
        inductive,
    )
    if earlier is not None and n_classes is None and isinstance(base, Config):
        base = earlier.without_merged(base, problem, overrides, console)
    if image_set.root is not None and Path(output).resolve().is_relative_to(image_set.root.resolve()):
        raise RunError(
            f"the output {output} lies in the image folder, where its pictures would be taken for images; "
            "choose another place"
        )
    group.check_same((image_set.names, given), "images or labels")
    counter = ClassCounter(problem, directory if has_begun else None, skip_unreadable=skip_unreadable, console=console)
    named = {
        "n_classes": n_classes,
        "method": method,
        "seed": seed,
        "device": device,
        "precision": precision,
        "compile": None if compile is None else "always" if compile else "never",
        "deterministic": deterministic or None,
    }
    resolved = group.on_first(
        lambda: _resolve(base, preset, overrides, named, {"backbone": backbone, "weights": weights}, counter)
    )
    if earlier is not None:
        earlier.check(resolved, directory.path)
    problem.check(resolved.n_classes)
    warmup = group.on_first(lambda: _shared(warmup_from, resolved, start_from, directory))
    fitting = Fit(problem, resolved, directory, console, counter.count, earlier, warmup)
    fitting.run(resume=resume, overwrite=overwrite, skip_unreadable=skip_unreadable, stop_after=stop_after)
    return group.on_first(lambda: Run(output, device))


def _begun_before(restarts: int, directory: RunDirectory, overwrite: bool) -> str | None:
    """The status of the run in the directory, if it is this very launch of torchrun that began it.

    Where another machine takes part than before, torchrun starts the processes again without counting it a restart.
    """
    if distributed.launch() is None or (overwrite and not restarts) or not directory.exists():
        return None
    info = directory.info()
    status = info["status"]
    if info.get("launch") != distributed.launch() or (status == "finished" and not restarts):
        return None
    how = "is finished" if status == "finished" else "goes on from its last checkpoint, as with --resume"
    warnings.warn(
        f"restarted by torchrun (restart {restarts}): the run in {directory.path} {how}",
        PromptCALWarning,
        stacklevel=2,
    )
    return status


def _earlier(
    start_from: str | PathLike[str] | None, directory: RunDirectory, resume: bool, config: Any, preset: str | None
) -> PreviousRun | None:
    if start_from is None:
        start = directory.info().get("started_from") if resume else None
        if start is not None:
            raise RunError(f"the run in {directory.path} goes on from {start}; add --from {start} to resume it")
        return None
    if config is not None or preset is not None:
        raise ConfigError(f"--from takes its settings from {start_from}; change single ones with --set")
    return PreviousRun(start_from)


def _shared(
    warmup_from: str | PathLike[str] | None,
    config: Config,
    start_from: str | PathLike[str] | None,
    directory: RunDirectory,
) -> SharedWarmup | None:
    if warmup_from is None:
        return None
    if start_from is not None:
        raise ConfigError("--from goes on from a run's last stage and --warmup-from from its first; give one of them")
    if config.method != "promptcal" or not (config.warmup.epochs and config.affinity.epochs):
        raise ConfigError(f"--warmup-from is for runs with two stages, which method {config.method} here has not")
    if Path(warmup_from).resolve() == directory.path.resolve():
        raise RunError(f"{directory.path} cannot take over its own warm-up; give another --output")
    return SharedWarmup(warmup_from)


def _resolve(
    config: Config | str | PathLike[str] | None,
    preset: str | None,
    overrides: Sequence[str],
    named: dict[str, Any],
    model: dict[str, Any],
    estimate: Callable[[Config], int] | None = None,
) -> Config:
    """The configuration of everything given; of ``named`` settings and the ``model``'s, those that are not None."""
    values = {k: v for k, v in named.items() if v is not None}
    values["model"] = {k: str(v) for k, v in model.items() if v is not None}
    method = named.get("method")
    if isinstance(config, Config):
        base = config.model_dump()
        if method not in (None, config.method):
            changes = method_preset(method)
            base |= {section: {**base[section], **settings} for section, settings in changes.items()}
        if "n_classes" in values:
            del base["n_classes_estimated"]
        merged = {**base, **values, "model": {**base["model"], **values["model"]}}
        return load_config(values=merged, overrides=overrides, estimate=estimate)
    return load_config(preset=preset, file=config, values=values, overrides=overrides, estimate=estimate)


def predict(
    *,
    run: str | PathLike[str] | Run,
    images: Any,
    output: str | PathLike[str] | None = None,
    none_below: float | None = None,
    accept_all: bool = False,
    device: str | None = None,
    skip_unreadable: bool = False,
    progress: bool = True,
) -> Assignments:
    """Put new images into the categories of a finished run, or into none; ``output`` also writes them as CSV.

    Args:
        run: A run directory.
        images: As `fit` takes them, or one image file.
        output: CSV file to write.
        none_below: Images are of none of the categories if their cosine with the nearest centre is below this; by
            default the run's own threshold, which 95 % of its images without a label reach.
        accept_all: Have no threshold.
        device: auto, cpu, cuda, mps; by default the run's.
        skip_unreadable: Leave out images that cannot be read instead of stopping.
        progress: Show progress.
    """
    loaded = run if isinstance(run, Run) else Run(run, device)
    if output is not None and not Path(output).parent.is_dir():
        raise RunError(f"the folder of the output {output} does not exist; make it first")
    assignments = loaded.predict(
        images, none_below=none_below, accept_all=accept_all, skip_unreadable=skip_unreadable, progress=progress
    )
    if output is not None:
        files.write_text(Path(output), assignments.to_csv())
    return assignments


def evaluate(*, run: str | PathLike[str] | Run, truth: Any) -> DiscoveryAccuracy:
    """Score a finished run against true classes, over the images it was not given a label for.

    Args:
        run: A run directory.
        truth: A CSV file with the columns path,label, a mapping path -> label, or one label per image.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    assignments = loaded.assignments()
    all_names, positions = loaded.given_images()
    of_all = read_labels(truth, all_names)
    true_classes = [of_all[i] for i in positions]
    scored = [i for i, t in enumerate(true_classes) if t is not None and not assignments.labelled[i]]
    if not scored:
        raise LabelError("the truth names no class for any image the run had no label for; check its paths")
    accuracy = discovery_accuracy(
        np.array([true_classes[i] for i in scored]),
        assignments.clusters[scored],
        loaded.info["known_classes"],
    )
    loaded.directory.write_truth(assignments.paths, true_classes)
    files.write_json(loaded.directory.evaluation_file, {"n_scored": len(scored), **asdict(accuracy)})
    return accuracy


def export(
    *,
    run: str | PathLike[str] | Run,
    to: str,
    output: str | PathLike[str],
    copy: bool = False,
    progress: bool = True,
) -> Path:
    """Write what a finished run found in the form another program reads; returns the output.

    Args:
        run: A run directory.
        to: folders, csv, coco, huggingface, fiftyone-json, embeddings or onnx.
        output: The file or folder to write; must not exist yet.
        copy: Copy images instead of linking to them.
        progress: Show progress.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    export_run(loaded, to, Path(output), copy=copy, console=Console(stderr=True, quiet=not progress))
    return Path(output)


def estimate_classes(
    *,
    images: Any,
    labels: Any = None,
    run: str | PathLike[str] | Run | None = None,
    max_classes: int | None = None,
    search: str | None = None,
    output: str | PathLike[str] | None = None,
    config: Config | str | PathLike[str] | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    backbone: str | None = None,
    weights: str | PathLike[str] | None = None,
    seed: int | None = None,
    device: str | None = None,
    skip_unreadable: bool = False,
    progress: bool = True,
) -> ClassCount:
    """Estimate how many categories there are, known and new together; ``output`` also writes curves and figures.

    The number at which k-means, which sees no label, best finds the labelled classes again.

    Args:
        images: As `fit` takes them.
        labels: As `fit` takes them; at least two classes.
        run: A finished run whose network embeds the images; by default the backbone as it came does.
        max_classes: The most there may be; by default a tenth as many as images, at most 1,000.
        search: brent (the default) or bisection.
        output: Folder to write class-count.json, .csv and .png to.
        config: As `fit` takes it.
        preset: Name of a preset to start from.
        overrides: Settings as ``a.b=value``.
        backbone: timm name of a ViT.
        weights: Local weight file for the backbone.
        seed: Seed of everything random.
        device: auto, cpu, cuda, mps.
        skip_unreadable: Leave out images that cannot be read instead of stopping.
        progress: Show progress.
    """
    if output is not None and Path(output).exists() and not Path(output).is_dir():
        raise DataError(f"the output {output} is a file; give a folder")
    given = {"max_classes": max_classes, "search": search}
    settings = [f"estimation.{key}={value}" for key, value in given.items() if value is not None]
    image_set = ImageSet.of(images)
    problem = Problem.of(image_set, read_labels(labels, image_set))
    console = Console(stderr=True, quiet=not progress)
    named = {"n_classes": 1, "seed": seed, "device": device}  # the number is what is asked for
    if run is not None:
        if backbone is not None or weights is not None:
            raise ConfigError("a run brings its own backbone; give either the run or a backbone and its weights")
        loaded = run if isinstance(run, Run) else Run(run, device)
        resolved = _resolve(config or loaded.config, preset, [*overrides, *settings], named, {})
        count = count_in_run(problem, loaded, resolved, skip_unreadable=skip_unreadable, console=console)
    else:
        resolved = _resolve(config, preset, [*overrides, *settings], named, {"backbone": backbone, "weights": weights})
        count = count_in_backbone(problem, resolved, skip_unreadable=skip_unreadable, console=console)
    if output is not None:
        write_class_count(Path(output), count)
    return count


def report(
    *, run: str | PathLike[str] | Run, output: str | PathLike[str] | None = None, progress: bool = True
) -> Report:
    """Write a finished run's report: one HTML file that opens from disk, without a server or a network.

    Args:
        run: A run directory.
        output: HTML file to write; by default `report.html` in the run directory.
        progress: Show progress.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    console = Console(stderr=True, quiet=not progress)
    if output is not None:
        return make_report(loaded, Path(output), console)
    with loaded.directory.locked():
        return make_report(loaded, None, console)


def figure(
    *,
    name: str,
    run: str | PathLike[str] | Run,
    output: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """Write one of the report's figures for a paper, and say where.

    Args:
        name: tsne, confusion, attention, neighbours or curves.
        run: A run directory.
        output: PNG, SVG or PDF file to write; by default `figures/NAME.png` in the run directory.
        progress: Show progress.
    """
    loaded = run if isinstance(run, Run) else Run(run, "cpu")
    material = ReportInputs.of(loaded, Console(stderr=True, quiet=not progress))
    return write_figure(name, material, None if output is None else Path(output))


def check(
    *,
    images: Any,
    labels: Any = None,
    output: str | PathLike[str] | None = None,
    min_side: int = 32,
    near_distance: int = 4,
    progress: bool = True,
) -> CheckReport:
    """Say what a set of images and labels holds before anything is learned from it; ``output`` also writes JSON.

    Args:
        images: As `fit` takes them.
        labels: As `fit` takes them.
        output: JSON file to write.
        min_side: Images whose shorter side has fewer pixels are reported as tiny.
        near_distance: Near duplicates differ in at most so many of 64 bits of a perceptual hash, 0 to 16.
        progress: Show progress.
    """
    if not 0 <= near_distance <= MAX_DISTANCE:
        raise ConfigError(f"the near distance must be 0 to {MAX_DISTANCE}, not {near_distance}")
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise DataError(f"the folder of {output} does not exist; make it first")
    image_set = ImageSet.of(images)
    label_names = read_labels(labels, image_set)
    with progress_bar(Console(stderr=True, quiet=not progress)) as bar:
        task = bar.add_task("checking", total=len(image_set), note="")
        report = check_images(
            image_set,
            label_names,
            min_side=min_side,
            near_distance=near_distance,
            on_progress=lambda done: bar.update(task, completed=done),
        )
    if output is not None:
        files.write_json(Path(output), report.as_dict())
    return report


def demo(
    *,
    output: str | PathLike[str],
    labels: Any = None,
    start_from: str | PathLike[str] | None = None,
    method: str | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    deterministic: bool = False,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    stop_after: float | None = None,
    progress: bool = True,
) -> Run:
    """Run the whole method on the embedded images and backbone: minutes on a CPU, no network.

    Half of the images of the first five CIFAR-10 classes are labelled; the other five classes are new.

    Args:
        output: The run directory to write.
        labels: As `fit` takes them, instead of those, such as the file that the report of a demo gives.
        start_from: A finished demo to go on from, as `fit` does.
        method: As `fit` takes it.
        seed: Seed of everything random; which images are labelled does not depend on it.
        device: auto, cpu, cuda, mps.
        precision: auto, fp32, bf16.
        compile: Compile the network; by default on CUDA where there are steps enough for it to pay.
        deterministic: Only algorithms that repeat themselves bit by bit; slower on a GPU, and a CPU's do anyway.
        overrides: Settings as ``a.b=value``.
        resume: Go on with the unfinished run in ``output``.
        overwrite: Discard the run in ``output``, if there is one.
        stop_after: As `fit` takes it.
        progress: Show progress.
    """
    data = embedded_set("train")
    labelled = label_half(data.labels, list(range(DEMO_KNOWN)))
    truth = [data.classes[c] for c in data.labels]
    if labels is None and start_from is None:
        labels = [t if is_labelled else None for t, is_labelled in zip(truth, labelled, strict=True)]
    return fit(
        images=data.images,
        labels=labels,
        truth=truth,
        output=output,
        preset="quick" if start_from is None else None,
        start_from=start_from,
        method=method,
        n_classes=len(data.classes) if start_from is None else None,
        overrides=overrides,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        deterministic=deterministic,
        resume=resume,
        overwrite=overwrite,
        stop_after=stop_after,
        progress=progress,
    )


def results(run: Run) -> dict[str, Any]:
    """What a fit measured of itself: accuracy by stage where the truth was given, epochs kept, seconds."""
    return json.loads(run.directory.results_file.read_text(encoding="utf-8"))


def datasets(*, root: str | PathLike[str] | None = None) -> list[benchmarks.Listing]:
    """The benchmarks of the paper, and which of them are there.

    Args:
        root: Folder with the datasets; by default that of the environment variable PROMPTCAL_DATA, or ./data.
    """
    return benchmarks.listing(root)


@distributed.distributed_entry_point
def benchmark(
    *,
    name: str,
    output: str | PathLike[str],
    root: str | PathLike[str] | None = None,
    method: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    deterministic: bool = False,
    overrides: Sequence[str] = (),
    download: bool = False,
    warmup_from: str | PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stop_after: float | None = None,
    skip_unreadable: bool = False,
    progress: bool = True,
) -> Run:
    """Fit a benchmark with its preset and score it on its unlabelled training images (transductive).

    ``NAME-inductive`` holds a tenth of the training images out to select by and scores the test images instead.

    Args:
        name: One of those `datasets` lists.
        output: The run directory to write.
        root: Folder with the datasets; by default that of the environment variable PROMPTCAL_DATA, or ./data.
        method: As `fit` takes it.
        seed: Seed of everything random; which images are labelled does not depend on it.
        device: auto, cpu, cuda, mps.
        precision: auto, fp32, bf16.
        compile: Compile the network; by default on CUDA where there are steps enough for it to pay.
        deterministic: Only algorithms that repeat themselves bit by bit; slower on a GPU, and a CPU's do anyway.
        overrides: Settings as ``a.b=value``.
        download: Fetch the dataset first where it is absent and can be fetched.
        warmup_from: As `fit` takes it.
        resume: Go on with the unfinished run in ``output``.
        overwrite: Discard the run in ``output``, if there is one.
        stop_after: As `fit` takes it.
        skip_unreadable: Leave out images that cannot be read instead of stopping.
        progress: Show progress.
    """
    setup = benchmarks.setup(name)
    if download and not distributed.group().is_first:
        distributed.group().wait()  # until the first process has fetched it
    data = benchmarks.benchmark(name, root, download)
    if download and distributed.group().is_first:
        distributed.group().wait()
    inductive = None
    if data.test is not None and data.validation is not None:
        inductive = Inductive(data.validation, data.test, data.test_truth())
    return fit(
        images=data.train,
        labels=data.labels(),
        truth=data.truth(),
        output=output,
        preset=setup.preset,
        n_classes=setup.dataset.n_classes,
        method=method,
        overrides=overrides,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        deterministic=deterministic,
        warmup_from=warmup_from,
        resume=resume,
        overwrite=overwrite,
        stop_after=stop_after,
        skip_unreadable=skip_unreadable,
        inductive=inductive,
        progress=progress,
    )


def table(**options: Any) -> TableReport:
    """Make a table: run what is missing, resume what was interrupted, reuse finished runs.

    Writes CSV, Markdown and a bar plot into ``output``/reports. A run that fails does not stop the others; it is in
    ``summary.problems`` of the result.

    Args:
        name: A table that `tables` lists, or a YAML file that defines one.
        output: Folder of the run directories, which tables share, and of the reports.
        seeds: A run for each; mean and standard deviation are over them.
        scale: full, or mini for the embedded images and backbone.
        epoch: Report the values of the selected or of the last epoch. The CSV has both.
        rows: Labels of the rows to run, or parts of them; by default all. The report has all rows.
        root: Folder with the datasets; by default that of the environment variable PROMPTCAL_DATA, or ./data.
        device: auto, cpu, cuda, mps.
        overrides: Settings as ``a.b=value`` for all rows whose method has them; a row's own have priority.
        run: Whether to run anything; if not, the report is of the finished runs.
        download: Download datasets that are absent, where possible.
        progress: Show progress.
    """
    return make_table(TableRequest(**options))


def table_document(*, document: str | PathLike[str], **options: Any) -> DocumentReport:
    """Fill the tables of a Markdown file: those between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    ``name`` may be a YAML file that defines several tables. Other options are those of `table`.
    """
    return write_document(TableRequest(**options), Path(document))


def table_runs(**options: Any) -> list[tuple[Job, State]]:
    """The runs that `table` needs and their states; runs nothing. Options are those of `table`."""
    return planned(TableRequest(**options))


def tables(**options: Any) -> list[TableListing]:
    """The package's tables, and how many of their runs are finished. Options are those of `table`."""
    return list_tables(TableRequest(**options))
