"""The first result of a fit, before the network is trained.

It is that of the frozen backbone's features. A fit that continues a previous run begins with the weights of that run:
its first result says where its categories continue with the new labels. It is written as a complete result and replaced
at the end. If the process is killed in between, it stays usable.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from promptcal.methods import METHODS, WITHOUT_TRAINING, without_training
from promptcal.models import DiscoveryNetwork
from promptcal.pipeline.class_estimate import frozen_vit
from promptcal.pipeline.clustering import embed_all
from promptcal.pipeline.comparison import FirstResult
from promptcal.pipeline.finalize import assign, write_result
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.scoring import frozen_features, score_frozen
from promptcal.pipeline.session import Session, say
from promptcal.pipeline.task import Task
from promptcal.report.build import write_report
from promptcal.run.inference import Run
from promptcal.run.results import Scores
from promptcal.runtime.phases import REPORT
from promptcal.runtime.seeds import isolated_rng


@isolated_rng(0)
def make_first_result(prepared: Prepared, session: Session, *, report: bool) -> FirstResult | None:
    """Write the first result and announce it; None for a fit that trains nothing.

    In the inductive protocol there is none either: only the test images are of interest. If a classifier of a previous
    run has no output for a new category before it is trained, there is no first result.
    """
    if not prepared.stages or prepared.test is not None or not prepared.problem.classes:
        return None
    task = (
        _with_previous_weights(prepared, session) if prepared.is_continued else _with_frozen_backbone(prepared, session)
    )
    if task is None:
        return None
    stored = session.group.on_first(lambda: _stored(session))
    if stored is not None:
        if task.previous is None:  # the categories of a previous run are given
            task = task.with_n_classes(stored.n_classes)
        return FirstResult(task, stored.features.to(session.device), stored.accuracy, stabilities=None)
    if prepared.is_continued:
        features = embed_all(task.network, task.view, len(task.problem.images), "embedding", session)
    else:
        features = frozen_features(prepared, session)
    outcome = assign(task, features, session)
    results = prepared.results
    if outcome.accuracy is not None:
        baselines = {} if prepared.is_continued else _baselines(prepared, task, features, outcome.accuracy, session)
        results = results.model_copy(update={"baselines": baselines, "selected": outcome.accuracy})
    session.group.on_first(lambda: write_result(task, outcome, results, session, is_first=True))
    if session.group.is_first:
        basis = "weights of the previous run" if prepared.is_continued else "frozen backbone"
        _announce(session, basis, report=report)
    return FirstResult(task.with_n_classes(outcome.n_classes), features, outcome.accuracy, outcome.partition.stability)


def _with_previous_weights(prepared: Prepared, session: Session) -> Prepared | None:
    """The weights as they are; a classifier is copied, because training changes it. None if it lacks an output."""
    task, network = replace(prepared, trains=False), prepared.network
    if prepared.method.assignment(network).uses_kmeans:
        return task
    if prepared.previous is None or not prepared.previous.has_outputs(prepared.problem, prepared.config.n_classes):
        return None
    copy = prepared.method.build(len(prepared.problem.classes), pretrained=False)
    copy.load_state_dict(network.state_dict())
    copy.set_compute_dtype(network.vit.compute_dtype)
    return replace(task, network=copy.to(session.device))


def _with_frozen_backbone(prepared: Prepared, session: Session) -> Prepared:
    config = without_training(prepared.config)
    vit = frozen_vit(prepared.network.vit, config, session.device)
    return replace(prepared, config=config, method=METHODS[config.method](config), network=DiscoveryNetwork(vit))


def _baselines(
    prepared: Prepared, frozen: Task, features: Tensor, accuracy: Scores, session: Session
) -> dict[str, Scores]:
    """The accuracies of the frozen backbone; ``accuracy`` is that of the first result."""
    if frozen.method.assignment(frozen.network).trains_readout:
        return score_frozen(prepared, session, features) | {WITHOUT_TRAINING: accuracy}
    return score_frozen(prepared, session, features, semi_supervised=accuracy)


class _Stored(NamedTuple):
    features: Tensor
    accuracy: Scores | None
    n_classes: int


def _stored(session: Session) -> _Stored | None:
    """What is needed of the first result of a resumed run, if it is complete."""
    if session.directory.info().status != "training":
        return None
    run, results = Run(session.directory.path, "cpu", warn_if_unfinished=False), session.directory.results()
    return _Stored(torch.from_numpy(run.embeddings()), None if results is None else results.selected, len(run.names))


def _announce(session: Session, basis: str, *, report: bool) -> None:
    file = session.directory.assignments_file
    if report:
        with session.clock.phase(REPORT, session.device):
            run = Run(session.directory.path, str(session.device), warn_if_unfinished=False)
            file = write_report(run, None, session.console).path
    say(f"First result after {session.clock.elapsed():.0f} s: open {file} ({basis}, before training)", session)
