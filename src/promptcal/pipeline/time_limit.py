"""The time that the rest of a fit will take, measured before training; a long one on a CPU needs the user's consent."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from promptcal.errors import ConfigError
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.session import Session, say
from promptcal.runtime.phases import CALIBRATION, CLUSTERING, EMBEDDING, READ_OUT, REPORT, PhaseClock
from promptcal.runtime.seeds import isolated_rng
from promptcal.training.time_estimate import TimeEstimate, describe_duration

LONG_SECONDS = 30 * 60
_RESUME = ", and --resume (resume=True) for the same output,"
_VIEWS_ON_CPU = 32  # of the measured step; a whole batch of a large backbone would take a minute


@dataclass(frozen=True)
class Consent:
    """Whether a long run on a CPU is allowed: always, or if the user says so."""

    always: bool = False
    ask: Callable[[str], bool] | None = None


def estimate_time(prepared: Prepared, steps: dict[str, int], steps_per_epoch: int, session: Session) -> TimeEstimate:
    """Measure the network on a few images, forwards and backwards; no weight and no random state changes.

    ``steps`` are those of the stages to train. Embedding, clustering, read-out, calibration and report take as long as
    they took before training, for the first result or the baselines. Without either, only the steps and the embedding
    are known.
    """
    batch = prepared.config.data.batch_size
    n_images = min(batch, _VIEWS_ON_CPU // 2) if session.device.type == "cpu" else batch
    share = len(range(batch)[session.group.part(batch)]) / n_images
    measured = _measure_step(prepared, n_images)
    embedding = measured / (6 * n_images * session.group.world)  # a view without gradient takes a third of one with it
    validation = _seconds_of_validation(prepared, embedding, session.clock)
    step = measured * share + validation / (prepared.config.selection.validate_every * steps_per_epoch)
    has_first = session.group.on_first(lambda: session.directory.info().has_result)
    after = seconds_after_training(prepared, embedding, session.clock, has_first=has_first)
    slowest = [session.group.all_reduce_max(round(1e6 * seconds)) / 1e6 for seconds in (step, after)]
    return TimeEstimate(steps, *slowest)


def _seconds_of_validation(prepared: Prepared, embedding: float, clock: PhaseClock) -> float:
    """The seconds of one validation; ``embedding`` are those of one image."""
    selection, n_images = prepared.config.selection, len(prepared.problem.images)
    if selection.by == "last":
        return 0.0
    n_chosen = min(n_images, selection.max_images)
    share = n_chosen / n_images * min(1.0, selection.n_init / prepared.config.clustering.n_init)
    return n_chosen * embedding + share * (clock.mean(CLUSTERING) or 0.0)


def seconds_after_training(prepared: Prepared, embedding: float, clock: PhaseClock, *, has_first: bool) -> float:
    """The seconds of `finalize` and the report. ``embedding`` are those of one image, if not all of them were measured.

    The result is a clustering. If the truth is known, the best weights of each other stage and those of the last epoch
    are scored too, with every seed of k-means. The comparison with a first result clusters both again.
    """
    assignment = prepared.method.assignment(prepared.network)
    n_embedded = 1 + (len(prepared.stages) if prepared.problem.can_be_scored else 0)
    repeats = prepared.config.clustering.repeats if prepared.problem.can_be_scored else 1
    n_clustered = n_embedded * repeats + 2 * has_first
    embedded = clock.mean(EMBEDDING)
    seconds = n_embedded * (len(prepared.problem.images) * embedding if embedded is None else embedded)
    if assignment.uses_kmeans:
        seconds += n_clustered * (clock.mean(CLUSTERING) or 0.0)
    if assignment.trains_readout:
        seconds += n_clustered * (clock.mean(READ_OUT) or 0.0)
    so_far = clock.phases()
    return seconds + so_far.get(CALIBRATION, 0.0) + so_far.get(REPORT, 0.0)


def _measure_step(prepared: Prepared, n_images: int) -> float:
    """The seconds of a step with two views of ``n_images``."""
    network, device = prepared.network, prepared.view.device
    order = torch.arange(n_images) % len(prepared.problem.images)
    was_training, seconds = network.training, 0.0
    network.train()
    with isolated_rng(0):
        for attempt in range(2):  # the first one allocates memory
            started = time.monotonic()
            views = next(iter(prepared.view.batches(order.unsqueeze(0), [attempt])))
            total = network.vit(views).cls.float().square().sum()
            if total.requires_grad:  # not if only heads are trained
                total.backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.monotonic() - started
    network.zero_grad(set_to_none=True)
    network.train(was_training)
    return seconds


def has_consent(estimate: TimeEstimate, consent: Consent, session: Session) -> bool:
    """Announce how long the rest of the fit takes; a long run on a CPU needs the user's consent.

    False if the user says no to training and is left with a first result; without one, or if nobody can be asked, this
    is an error.
    """
    seconds = estimate.seconds_left()
    duration = describe_duration(seconds)
    say(f"About {duration} left: training with validation, then embedding, clustering and read-out", session)
    if session.device.type != "cpu" or seconds <= LONG_SECONDS or consent.always:
        return True
    ask = consent.ask
    if ask is not None and session.group.on_first(lambda: ask(f"Train for about {duration} on this CPU?")):
        return True
    has_first = session.group.on_first(lambda: session.directory.info().has_result)
    if ask is not None and has_first:
        return False
    kept = " (the first result is kept)" if has_first else ""
    raise ConfigError(
        f"training would take about {duration} on this CPU{kept}; use `fit --quick` (in Python quick=True), which "
        f"trains no network, or a GPU, or add --allow-long (allow_long=True){_RESUME if kept else ''} to train anyway"
    )
