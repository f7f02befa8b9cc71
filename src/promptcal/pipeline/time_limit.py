"""The time that training will take, measured before it starts; a long one on a CPU needs the user's consent."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from promptcal.errors import ConfigError
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.session import Session, say
from promptcal.runtime.seeds import isolated_rng
from promptcal.training.time_estimate import TimeEstimate, describe_duration

LONG_SECONDS = 30 * 60
_VIEWS_ON_CPU = 32  # of the measured step; a whole batch of a large backbone would take a minute


@dataclass(frozen=True)
class Consent:
    """Whether a long run on a CPU is allowed: always, or if the user says so."""

    always: bool = False
    ask: Callable[[str], bool] | None = None


def estimate_time(prepared: Prepared, steps: dict[str, int], session: Session) -> TimeEstimate:
    """Measure the network on a few images, forwards and backwards; no weight and no random state changes."""
    batch = prepared.config.data.batch_size
    n_images = min(batch, _VIEWS_ON_CPU // 2) if session.device.type == "cpu" else batch
    share = len(range(batch)[session.group.part(batch)]) / n_images
    seconds = _measure_step(prepared, n_images) * share * _factor_of_validation(prepared)
    slowest = session.group.all_reduce_max(round(1e6 * seconds)) / 1e6
    return TimeEstimate(steps, slowest)


def _factor_of_validation(prepared: Prepared) -> float:
    """How much longer a step is with its share of the validations, which embed images without gradient."""
    selection, n_images = prepared.config.selection, len(prepared.problem.images)
    if selection.by == "last":
        return 1.0
    views_between = 2 * n_images * selection.validate_every  # a view without gradient takes a third of one with it
    return 1 + min(n_images, selection.max_images) / (3 * views_between)


def _measure_step(prepared: Prepared, n_images: int) -> float:
    """Seconds of a step with two views of so many images."""
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


def require_consent(estimate: TimeEstimate, consent: Consent, session: Session) -> None:
    """Announce how long training takes; a long run on a CPU needs the user's consent."""
    seconds = estimate.seconds_left()
    duration = describe_duration(seconds)
    say(f"Training takes about {duration}, all stages together", session)
    if session.device.type != "cpu" or seconds <= LONG_SECONDS or consent.always:
        return
    ask = consent.ask
    if ask is not None and session.group.on_first(lambda: ask(f"Train for about {duration} on this CPU?")):
        return
    kept = " (the first result is kept)" if session.directory.info().has_result else ""
    raise ConfigError(
        f"training would take about {duration} on this CPU{kept}; use `fit --quick`, which trains no network, or a "
        f"GPU, or add --allow-long {'and --resume ' if kept else ''}to train anyway"
    )
