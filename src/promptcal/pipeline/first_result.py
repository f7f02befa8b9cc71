"""The first result of a fit: the read-out on the frozen backbone's features, before the network is trained.

It is written as a complete result and replaced at the end. If the process is killed in between, it stays usable.
"""

from dataclasses import replace

import torch

from promptcal.methods import METHODS, WITHOUT_TRAINING, without_training
from promptcal.models import DiscoveryNetwork
from promptcal.pipeline.class_estimate import frozen_vit
from promptcal.pipeline.comparison import FirstResult
from promptcal.pipeline.finalize import assign, write_result
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.scoring import frozen_features, score_frozen
from promptcal.pipeline.session import Session, say
from promptcal.report.build import write_report
from promptcal.run.inference import Run
from promptcal.runtime.phases import REPORT
from promptcal.runtime.seeds import isolated_rng


@isolated_rng(0)
def make_first_result(prepared: Prepared, session: Session, *, report: bool) -> FirstResult | None:
    """Write the first result and announce it; None for a fit that trains nothing or continues another run.

    In the inductive protocol there is none either: only the test images are of interest.
    """
    if not prepared.stages or prepared.is_continued or prepared.test is not None or not prepared.problem.classes:
        return None
    stored = session.group.on_first(lambda: _stored(session))
    if stored is not None:
        return replace(stored, features=stored.features.to(session.device))
    config = without_training(prepared.config)
    vit = frozen_vit(prepared.network.vit, config, session.device)
    frozen = replace(prepared, config=config, method=METHODS[config.method](config), network=DiscoveryNetwork(vit))
    features = frozen_features(prepared, session)
    outcome = assign(frozen, features, session)
    results = prepared.results
    if outcome.accuracy is not None:
        is_kmeans = not frozen.method.assignment(frozen.network).trains_readout
        baselines = score_frozen(prepared, session, features, semi_supervised=outcome.accuracy if is_kmeans else None)
        baselines |= {} if is_kmeans else {WITHOUT_TRAINING: outcome.accuracy}
        results = results.model_copy(update={"baselines": baselines, "selected": outcome.accuracy})
    session.group.on_first(lambda: write_result(frozen, outcome, results, session, is_first=True))
    if session.group.is_first:
        _announce(session, report=report)
    return FirstResult(features, outcome.accuracy)


def _stored(session: Session) -> FirstResult | None:
    """The first result of a resumed run, if it is complete."""
    if session.directory.info().status != "training":
        return None
    run, results = Run(session.directory.path, "cpu", warn_if_unfinished=False), session.directory.results()
    baselines = {} if results is None else results.baselines
    accuracy = baselines.get(WITHOUT_TRAINING, baselines.get("semi_supervised_kmeans"))
    return FirstResult(torch.from_numpy(run.embeddings()), accuracy)


def _announce(session: Session, *, report: bool) -> None:
    file = session.directory.assignments_file
    if report:
        with session.clock.phase(REPORT, session.device):
            run = Run(session.directory.path, str(session.device), warn_if_unfinished=False)
            file = write_report(run, None, session.console).path
    say(f"First result after {session.clock.elapsed():.0f} s: open {file} (frozen backbone, before training)", session)
