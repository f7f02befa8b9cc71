"""Categories of features that another model computed: `promptcal cluster`.

The second half of a fit: the features take the place of the network's embeddings. Nothing is written before the result
is complete.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor

from promptcal.config import AUTO, Config, Layers
from promptcal.data import ImageSet
from promptcal.data.decoding import UnreadableImage
from promptcal.data.feature_set import FeatureSet
from promptcal.discovery.class_count import ClassCount
from promptcal.discovery.sampling import sample_rows
from promptcal.discovery.silhouette_count import count_by_silhouette
from promptcal.errors import ConfigError, DataError, Interrupted, PromptCALError, RunError
from promptcal.methods import METHODS, OF_FEATURES
from promptcal.pipeline.adaptation import adapt_features
from promptcal.pipeline.begin import begin_run
from promptcal.pipeline.class_estimate import count_from_features
from promptcal.pipeline.finalize import Outcome, assign, write_result
from promptcal.pipeline.inputs import Settings, n_categories, overrides_n_classes, read_problem
from promptcal.pipeline.prepare import held_out
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Problem
from promptcal.pipeline.repeated_options import absolute, is_path
from promptcal.pipeline.request import ClusterRequest
from promptcal.pipeline.sampled_inputs import is_folder_of_shards, sampled_features, with_truth_of
from promptcal.pipeline.session import Session, say, warn
from promptcal.pipeline.task import Task
from promptcal.report.contact_sheets import SheetPictures
from promptcal.run.directory import RunDirectory
from promptcal.run.inference import Run
from promptcal.run.info import RunInfo
from promptcal.run.results import Adaptation, RunResults
from promptcal.runtime import files
from promptcal.runtime.device import deterministic_mode, device_context, explain_memory_errors
from promptcal.runtime.phases import ADAPTATION, COUNTING, READING, PhaseClock
from promptcal.runtime.progress import progress_bar, working
from promptcal.runtime.seeds import derive_seed
from promptcal.shards import locations
from promptcal.shards.engines import EngineSettings
from promptcal.shards.find_shards import expand
from promptcal.shards.process import ShardJob, process_shards
from promptcal.shards.run_model import RunModel
from promptcal.shards.sampled import row_counts

_MOST_COUNTED = 20_000  # rows that the number of classes is estimated from
_ROWS_OF_ONE_PROCESS = 1_000_000  # that are assigned before other processes would have started
_SHEET_TILE = 128  # pixels that a picture is reduced to for a contact sheet


@explain_memory_errors()
def run_cluster(request: ClusterRequest) -> Run:
    """Sort the request's features into categories and write a run directory."""
    directory, console = RunDirectory(request.output), Console(stderr=True, quiet=not request.progress)
    clock = PhaseClock()
    directory.check_free(resume=False, overwrite=request.overwrite)
    is_sample = is_folder_of_shards(request.features)
    if request.sample is not None and not is_sample:
        raise ConfigError("--sample is for a folder of shards; a single file is clustered as a whole")
    given = request
    previous = _previous_run(request)
    if is_sample:
        seed = Settings(_values(request, 1, previous)).draft(1).seed  # the width is not known yet
        before = None if previous is None else previous.assignments
        features = sampled_features(request, before, seed, console)
        request = with_truth_of(request, features, console)
    else:
        features = FeatureSet.of(request.features, request.ids)
    if previous is not None:
        features.check_width(previous.run.network.embedding_width)
    images = features.pictures(None if request.images is None else Path(request.images))
    _check_output_is_outside(images, directory.path)
    problem, released = read_problem(request, images, previous, console)
    settings = _settings(request, features.width, previous, problem, console)
    draft = settings.draft(len(problem.classes))
    if previous is not None:
        previous.check(draft, directory.path)
    problem.check(max(1, len(problem.classes)) if settings.estimates_classes else draft.n_classes)
    session = Session(directory, draft, console, clock=clock)
    with _active(session):
        embeddings = _read(features, session)
        pictures = None if request.images is None else SmallPictures(images)
        found = discover(
            problem,
            embeddings,
            settings,
            session,
            previous=previous,
            released=released,
            keep_confirmed=request.keep_confirmed,
            pictures=pictures,
            adapt=request.adapt,
        )
        _write(found, _run_info(given, features, found.task), session)
    run = Run(request.output, request.device)
    if is_sample:
        _assign_all(run, given, console)
    return run


def _assign_all(run: Run, request: ClusterRequest, console: Console) -> None:
    """Assign every row of the shards, in the folder `assignments` of the run. `predict` continues it."""
    source, output = os.fspath(request.features), run.directory.shards_folder
    try:
        process_shards(own_assignments(run, (locations.absolute(source),), request.device), console)
    except (Interrupted, PromptCALError) as error:
        again = f"promptcal predict {run.path} {source} --output {output}"
        warn(f"the run is finished, but not the assignments of all rows; `{again}` continues")
        raise error


def own_assignments(run: Run, source: tuple[str, ...], device: str | None) -> ShardJob:
    """The rows that a run is a sample of: labelled ones stay in their categories, and all are accepted."""
    model = RunModel(run.path.absolute(), embeds=False, assigns=True, keep_labels=True)
    is_small = sum(row_counts(expand(source, embeddings=True)[0])) < _ROWS_OF_ONE_PROCESS
    settings = EngineSettings(workers=1 if is_small else None)
    output = run.directory.shards_folder
    return ShardJob(source, model, output, settings=settings, embeddings=True, device=device)


@dataclass(frozen=True)
class SmallPictures:
    """The pictures of rows, reduced in size; one that cannot be read is grey."""

    images: ImageSet

    def image(self, index: int) -> np.ndarray:
        try:
            return np.asarray(self.images.thumbnail(index, _SHEET_TILE))
        except (UnreadableImage, OSError):
            return np.full((_SHEET_TILE, _SHEET_TILE, 3), 128, dtype=np.uint8)


@dataclass(frozen=True)
class Discovered:
    """The categories of features. ``count`` is the estimate of their number, if it was to be estimated."""

    task: Task
    outcome: Outcome
    results: RunResults
    count: ClassCount | None


def discover(
    problem: Problem,
    embeddings: Tensor,
    settings: Settings,
    session: Session,
    *,
    previous: PreviousRun | None = None,
    released: frozenset[str] = frozenset(),
    keep_confirmed: bool = False,
    pictures: SheetPictures | None = None,
    adapt: bool = False,
) -> Discovered:
    """Sort L2-normalised features into categories; nothing is written."""
    embeddings = embeddings.to(session.device)
    count: ClassCount | None = None
    n_classes: int | None = None
    if settings.estimates_classes:
        with session.clock.phase(COUNTING, session.device):
            n_classes, count = _count_classes(problem, embeddings, settings.draft(len(problem.classes)), session)
        estimate = f"{n_classes} classes" if count is None else count.description
        say(
            f"The number of categories is estimated: {estimate}, {len(problem.classes)} of them known; --n-classes "
            "sets another number",
            session,
        )
    config = settings.config(n_classes)
    method = METHODS[config.method](config)
    network = method.build(len(problem.classes), pretrained=False)
    if previous is not None:
        network.load_state_dict(previous.run.stored_weights())
    task = Task(
        problem=problem,
        config=config,
        method=method,
        network=network.to(session.device),
        held_out=held_out(problem, method, previous, False),
        previous=previous,
        released=released,
        keep_confirmed=keep_confirmed,
        pictures=pictures,
        count_interval=None if count is None else count.interval,
    )
    adaptation: Adaptation | None = None
    if adapt:
        with session.clock.phase(ADAPTATION, session.device):
            projection, adaptation = adapt_features(task, embeddings, session)
        config = settings.with_values(features={"projection": adaptation.used}).config(n_classes)
        task = replace(task, network=projection, config=config, method=METHODS[config.method](config))
    outcome = assign(task, task.network.embed(embeddings), session)
    results = RunResults(method=config.method, selected=outcome.accuracy, last=outcome.accuracy, adaptation=adaptation)
    return Discovered(task, outcome, results, count)


def _count_classes(
    problem: Problem, embeddings: Tensor, draft: Config, session: Session
) -> tuple[int, ClassCount | None]:
    """By labels of at least two classes as in a fit, otherwise by the silhouette; from a part of many rows."""
    if (problem.labels >= 0).all():
        return len(problem.classes), None
    seed = derive_seed(draft.seed, "class count")
    chosen = sample_rows(problem.labels, _MOST_COUNTED, seed)
    part, labels = embeddings[chosen.to(session.device)], problem.labels[chosen]
    if len(problem.classes) < 2:
        with working(session.console, "counting classes"):
            return count_by_silhouette(part, labels, n_init=draft.estimation.n_init, seed=seed), None
    count = count_from_features(part, labels, problem.counts, draft, session.console)
    return count.start, count


@contextmanager
def _active(session: Session) -> Iterator[None]:
    """Hold the lock of the output. If the command is stopped, it leaves nothing behind."""
    directory = session.directory
    existed = directory.path.is_dir()
    with session.stop.listening():
        try:
            with (
                directory.locked(),
                device_context(session.device, session.dtype),
                deterministic_mode(session.deterministic),
            ):
                yield
        except KeyboardInterrupt:
            if not existed and not directory.exists() and directory.path.is_dir():
                files.remove_folder(directory.path)
            raise Interrupted("stopped; nothing was written", session.stop.exit_code) from None


def _previous_run(request: ClusterRequest) -> PreviousRun | None:
    if request.start_from is None:
        return None
    if request.adapt:
        raise ConfigError("--from keeps the features as the previous run adapted them; leave --adapt out")
    previous = PreviousRun(request.start_from)
    if previous.run.method.takes_images:
        raise ConfigError(f"{request.start_from} is a run on images; continue it with `promptcal fit --from`")
    return previous


def _check_output_is_outside(images: ImageSet, output: Path) -> None:
    if images.root is not None and files.is_below(output, images.root):
        raise RunError(f"the output {output} lies in the image folder; choose another place")


def _settings(
    request: ClusterRequest, width: int, previous: PreviousRun | None, problem: Problem, console: Console
) -> Settings:
    values = _values(request, width, previous)
    if previous is not None and request.n_classes is None and not overrides_n_classes(request):
        values = {**values, "n_classes": n_categories(values["n_classes"], previous, problem, console)}
    return Settings(values)


def _values(request: ClusterRequest, width: int, previous: PreviousRun | None) -> dict[str, Any]:
    """All settings; those of a previous run have its number of categories."""
    named = {"n_classes": request.n_classes, "seed": request.seed, "device": request.device}
    values: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    base = features_settings(width) if previous is None else previous.settings(OF_FEATURES)
    layers = Layers.of(values={**values, "method": OF_FEATURES}, overrides=request.overrides)
    layers = Layers(layers.preset, (base, *layers.given))
    if layers.method != OF_FEATURES:
        raise ConfigError("features have no other method; leave --set method=... out")
    return layers.merged(METHODS[OF_FEATURES])


def features_settings(width: int) -> dict[str, Any]:
    """Values of a run on features of this width, which other settings may change."""
    return {
        "method": OF_FEATURES,
        "n_classes": AUTO,
        "features": {"width": width},
        "clustering": {"readout": "head", "max_points_per_cluster": 128},
    }


def _read(features: FeatureSet, session: Session) -> Tensor:
    with session.clock.phase(READING), progress_bar(session.console) as bar:
        task = bar.add_task("reading features", total=len(features), note="")
        show = lambda done: bar.update(task, completed=done)  # noqa: E731
        return features.embeddings(session.directory.path, show)


def _run_info(request: ClusterRequest, features: FeatureSet, task: Task) -> RunInfo:
    problem, previous = task.problem, task.previous
    root = problem.images.root
    return RunInfo(
        status="running",
        root=None if root is None else str(root.absolute()),
        folder=problem.images.folder() if root is not None else None,
        command=_repeated_words(request),
        n_images=len(problem.images),
        n_labelled=int((problem.labels >= 0).sum()),
        known_classes=problem.classes,
        n_classes=task.config.n_classes,
        n_classes_estimated=task.config.n_classes_estimated,
        started_from=None if previous is None else str(previous.path.absolute()),
    )


def _repeated_words(request: ClusterRequest) -> list[str]:
    """The words of a command line that name the same features again; empty if they are no file."""
    given = {"--images": request.images, "--ids": request.ids, "--truth": request.truth}
    if not all(is_path(value) for value in (request.features, *given.values()) if value is not None):
        return []
    words = ["cluster", absolute(request.features)]
    for option, value in given.items():
        words += [] if value is None else [option, absolute(value)]
    return [*words, "--keep-confirmed"] if request.keep_confirmed else words


def _write(found: Discovered, info: RunInfo, session: Session) -> None:
    """Write the whole run; if that fails, nothing stays."""
    directory = session.directory
    try:
        begin_run(directory, info, found.task.config, found.count, [], resume=False)
        write_result(found.task, found.outcome, found.results, session)
    except BaseException as error:
        directory.clear()
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise DataError(f"the output {directory.path} cannot be written ({reason}); free some space") from error
        raise
