"""Step 2 of a fit: train the method's stages, each from the best weights of the previous one."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcal.data import ImageSet, View, build_sampler
from promptcal.data.store import decode
from promptcal.errors import Interrupted
from promptcal.methods.base import StageContext
from promptcal.pipeline.clustering import embed_all, final_clustering, validation_kmeans
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.scoring import score_frozen
from promptcal.pipeline.session import Session, warn
from promptcal.pipeline.shared_stage import SharedStage
from promptcal.pipeline.time_limit import Consent, estimate_time, has_consent
from promptcal.run.results import RunResults, StageResult
from promptcal.runtime.device import choose_compile
from promptcal.runtime.phases import START_UP
from promptcal.runtime.seeds import derive_seed, isolated_rng
from promptcal.training.embedding import embed
from promptcal.training.loop import Loop, TrainingData
from promptcal.training.recorder import Recorder
from promptcal.training.stage import Stage
from promptcal.training.time_estimate import TimeEstimate
from promptcal.training.validation import OracleValidator, ValidationResult, Validator


@dataclass(frozen=True)
class Trained:
    """A trained network (with the weights of the last stage that ran) and what was measured so far."""

    prepared: Prepared
    results: RunResults


def train(prepared: Prepared, consent: Consent, session: Session) -> Trained | None:
    """None if the user does not want to train, and has a first result."""
    results = session.group.on_first(session.directory.results) or prepared.results
    if prepared.problem.can_be_scored and not prepared.is_continued and not results.baselines:
        results = results.model_copy(update={"baselines": score_frozen(prepared, session)})
    with isolated_rng(derive_seed(prepared.config.seed, "backbone")):  # for backbones with dropout
        trained = _train_stages(prepared, results, consent, session)
        return None if trained is None else Trained(prepared, trained)


@dataclass(frozen=True)
class _TrainingStart:
    """Where training begins. ``left`` are the stages to train; the first of them continues from ``state``, the last
    checkpoint of a resumed run. ``shared`` is the first stage of another run, which is not trained here."""

    left: list[str]
    state: dict[str, Any] | None = None
    shared: SharedStage | None = None


def _find_start(prepared: Prepared, session: Session) -> _TrainingStart:
    stages, shared = prepared.stages, prepared.shared
    state = session.checkpoints.load_last() if prepared.is_resumed else None
    if prepared.is_resumed:
        session.clock.add_earlier(state["phases"] if state else prepared.results.phases)
    if state is not None:
        with session.checkpoints.restoring():
            if state["stage"] not in stages:
                raise ValueError(f"it is of the stage {state['stage']}")
        return _TrainingStart(stages[stages.index(state["stage"]) :], state=state)
    if shared is not None:
        return _TrainingStart([name for name in stages if name != shared.name], shared=shared)
    return _TrainingStart(stages)


def _train_stages(prepared: Prepared, results: RunResults, consent: Consent, session: Session) -> RunResults | None:
    if not prepared.stages:
        return results
    start = _find_start(prepared, session)
    recorder = _recorder(prepared, session)
    recorder.rewind(start.state["records"] if start.state else 0)  # drop what was recorded after the last checkpoint
    data, validator = _training_data(prepared, session), _validator(prepared)
    time_left = _estimate_time(prepared, start, data, session)
    if start.state is None and not has_consent(time_left, consent, session):  # a resumed run is allowed already
        return None
    _compile_if_worth_it(prepared, sum(_steps(prepared, prepared.stages, data).values()), session)
    if start.shared is not None:
        results = _take_stage(start.shared, results, recorder, session)
    state = start.state
    previous = {stage: before for before, stage in pairwise(prepared.stages)}
    for name in start.left:
        if name in previous:
            session.checkpoints.load_best(previous[name], prepared.network)
        context = _context(prepared, session, is_resumed=state is not None)
        stage = prepared.method.stage(name, prepared.network, context)
        trained = _run_stage(stage, prepared, data, validator, recorder, state, time_left, session)
        results = _with_stage(results, name, trained)
        _write(results, session)
        if session.stop.requested_by_any(session.group):
            raise Interrupted(f"stopped after {name}; run the same command with --resume", session.stop.exit_code)
        state = None
    return results


def _recorder(prepared: Prepared, session: Session) -> Recorder:
    method = prepared.method
    return Recorder(
        session.directory.path,
        session.console,
        tensorboard=prepared.config.tensorboard,
        writes=session.group.is_first,
        titles={name: method.stage_titles.get(name, method.title) for name in prepared.stages},
        verbose=session.verbose,
    )


def _training_data(prepared: Prepared, session: Session) -> TrainingData:
    labels, config = torch.from_numpy(prepared.training_labels), prepared.config.data
    return TrainingData(
        prepared.view,
        labels.to(session.device),
        build_sampler(config.sampling, labels >= 0, config.batch_size, _training_images(prepared)),
        session.group.part(config.batch_size),
        prepared.method.augment,
    )


def _steps(prepared: Prepared, stages: list[str], data: TrainingData) -> dict[str, int]:
    """The steps of each stage."""
    epochs = prepared.method.epochs()
    return {name: epochs[name] * data.sampler.steps_per_epoch for name in stages}


def _estimate_time(prepared: Prepared, start: _TrainingStart, data: TrainingData, session: Session) -> TimeEstimate:
    with session.clock.phase(START_UP, session.device):
        steps = _steps(prepared, start.left, data)
        return estimate_time(prepared, steps, data.sampler.steps_per_epoch, session)


def _take_stage(shared: SharedStage, results: RunResults, recorder: Recorder, session: Session) -> RunResults:
    """Copy the weights and the records of another run's stage."""
    copied = session.group.on_first(lambda: shared.copy_into(session.checkpoints, recorder.path))
    results = _with_stage(results, shared.name, copied)
    _write(results, session)
    return results


def _run_stage(
    stage: Stage,
    prepared: Prepared,
    data: TrainingData,
    validator: Validator | OracleValidator | None,
    recorder: Recorder,
    state: dict[str, Any] | None,
    time_left: TimeEstimate,
    session: Session,
) -> StageResult:
    config, method, network = prepared.config, prepared.method, prepared.network
    assignment, kmeans = method.assignment(network), validation_kmeans(config)

    def validate() -> ValidationResult:
        assert validator is not None
        return validator.validate(
            network,
            lambda features, labels: assignment.clusters(features, labels, kmeans),
            lambda known, silhouette: method.validation_score(stage.name, known, silhouette),
        )

    epochs = method.epochs()[stage.name]
    loop = Loop(
        stage,
        data,
        epochs=epochs,
        optim=config.optim,
        seed=config.seed,
        validate=None if validator is None else validate,
        validate_every=config.selection.validate_every,
        parameter_groups=method.parameter_groups(network),
        checkpoints=session.checkpoints,
        recorder=recorder,
        stop=session.stop,
        time_left=time_left,
        clock=session.clock,
    )
    if state is not None:
        loop.restore(state)
    if stage.description and session.verbose:
        session.console.print(stage.description, highlight=False)
    with session.stop.waiting():
        loop.run()
    return StageResult(best_epoch=loop.position.best_epoch, epochs=epochs, score=loop.position.best_score)


def _with_stage(results: RunResults, name: str, stage: StageResult) -> RunResults:
    return results.model_copy(update={"stages": {**results.stages, name: stage}})


def _write(results: RunResults, session: Session) -> None:
    if session.group.is_first:
        session.directory.with_first_result(results).write(session.directory.results_file)


def _validator(prepared: Prepared) -> Validator | OracleValidator | None:
    by, inductive = prepared.config.selection.by, prepared.problem.inductive
    if by == "oracle":
        return _oracle_validator(prepared)
    if by == "last" or not (prepared.held_out >= 0).any():
        return None
    return Validator(
        prepared.view,
        prepared.training_labels,
        prepared.held_out,
        prepared.config,
        None if inductive is None else inductive.validation,
    )


def _oracle_validator(prepared: Prepared) -> OracleValidator:
    """A validator on the test images, or in the inductive protocol on the images held out for validation."""
    problem = prepared.problem
    if prepared.oracle is not None:
        test = prepared.oracle
        return OracleValidator(test.view, torch.arange(len(test.truth)), test.truth, problem.classes)
    assert problem.inductive is not None
    assert problem.truth is not None
    truth = problem.truth
    images = [i for i in np.flatnonzero(problem.inductive.validation).tolist() if truth[i] is not None]
    return OracleValidator(prepared.view, torch.tensor(images), [str(truth[i]) for i in images], problem.classes)


def _training_images(prepared: Prepared) -> Tensor:
    """Mask of the images that are trained on: in the inductive protocol all but the validation images."""
    inductive = prepared.problem.inductive
    every = torch.ones(len(prepared.training_labels), dtype=torch.bool)
    return every if inductive is None else torch.from_numpy(~inductive.validation)


def _context(prepared: Prepared, session: Session, *, is_resumed: bool) -> StageContext:
    truth = prepared.problem.truth_numbers()

    def centroids() -> Tensor:
        features = embed_all(prepared.network, prepared.view, len(prepared.problem.images), "embedding", session)
        fitted = final_clustering(prepared.config, session).kmeans(features, prepared.training_labels)
        return torch.from_numpy(fitted.cluster_centers_)

    def load_images(folder: str) -> View:
        store, _, faults = decode(ImageSet.of(folder), prepared.resize, skip_unreadable=True)
        if faults:
            warn(f"{len(faults)} images in {folder} cannot be read and were skipped")
        sizes, device = prepared.network.vit.preprocessing, session.device
        return View(store.placed(device), *sizes, resize=prepared.resize, device=device)

    def unlabelled_features() -> Tensor:
        unlabelled = torch.from_numpy(prepared.training_labels < 0) & _training_images(prepared)
        if not unlabelled.any():
            return torch.empty(0, prepared.network.vit.dim, device=session.device)
        return embed(prepared.network, prepared.view, unlabelled.nonzero().flatten(), group=session.group)

    return StageContext(
        len(prepared.problem.classes),
        None if truth is None else torch.from_numpy(truth).to(session.device),
        is_resumed,
        prepared.is_continued,
        centroids,
        load_images,
        unlabelled_features,
    )


def _compile_if_worth_it(prepared: Prepared, steps: int, session: Session) -> None:
    vit, device, world = prepared.network.vit, session.device, session.group.world
    is_compiled = choose_compile(prepared.config.compile, device, steps)
    if is_compiled:
        # the versions that an earlier fit of this process compiled count towards the number after which the compiler
        # gives up
        torch.compiler.reset()
        prepared.network.compile()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    details = ", compiled (the first steps take some seconds)" if is_compiled else ""
    details += f", in {world} processes" if world > 1 else ""
    dtype = f" in {str(vit.compute_dtype).removeprefix('torch.')}" if session.verbose else ""
    session.console.print(f"Training on {name}{dtype}{details}", highlight=False)
