"""The training loop that every stage runs in. It stops when the loss, gradients or weights are not finite."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.progress import Progress, TaskID
from torch import Tensor
from torch.nn.utils import get_total_norm

from promptcal.config.schema import OptimConfig
from promptcal.data import Sampler, StreamedView, View
from promptcal.data.views import WHOLE
from promptcal.errors import DataError, Interrupted, TrainingError
from promptcal.runtime.interrupts import StopRequest
from promptcal.runtime.phases import COMPILING, SAVING, VALIDATION, PhaseClock, steps_of
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed
from promptcal.training.checkpoints import Checkpoints, load_trained
from promptcal.training.recorded_step import RecordedUpdate, Update
from promptcal.training.recorder import AsyncScalars, Recorder
from promptcal.training.schedule import learning_rate
from promptcal.training.stage import Batch, Stage
from promptcal.training.time_estimate import TimeEstimate
from promptcal.training.validation import ValidationResult

_WATCHED = {"loss": "the loss is", "gradient_norm": "the gradient is", "weights": "the weights are"}


@dataclass
class Position:
    """Progress of a stage: epochs done, steps of the current epoch, its sums so far, and the best validation."""

    epoch: int = 0
    step: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    best_score: float = -math.inf
    best_epoch: int = 0

    def add(self, logs: dict[str, Tensor]) -> None:
        """Add values to log: numbers, of which the mean is taken, or pairs of a sum and a count."""
        for key, value in logs.items():
            self.sums[key] = self.sums[key] + value if key in self.sums else value.clone()
            self.counts[key] = self.counts.get(key, 0) + 1

    def means(self) -> dict[str, Tensor]:
        return {
            key: total[0] / total[1].clamp(min=1) if total.ndim else total / self.counts[key]
            for key, total in self.sums.items()
        }

    def watched_sums(self) -> dict[str, Tensor]:
        """Sums that are finite only if the loss and gradient of every step of this epoch are."""
        return {key: self.sums[key] for key in ("loss", "gradient_norm") if key in self.sums}

    def next_epoch(self) -> None:
        self.epoch, self.step, self.sums, self.counts = self.epoch + 1, 0, {}, {}


@dataclass(frozen=True)
class TrainingData:
    """Views of the images, their training labels (-1 = unlabelled), and how batches are drawn from them.

    ``part`` is the part of a batch whose views this process gets; labels and indices are of the whole batch.
    ``augment`` changes the views before a stage sees them, with a random generator of its own.
    """

    view: View | StreamedView
    labels: Tensor
    sampler: Sampler
    part: slice = field(default_factory=lambda: WHOLE)
    augment: Callable[[Tensor, torch.Generator], Tensor] = lambda views, generator: views

    def batches(self, order: Tensor, seeds: Sequence[int]) -> Iterator[Batch]:
        """A batch for each row of ``order``; its seed determines crops, flips, augmentation and the stage's draws."""
        for views, indices, seed in zip(self.view.batches(order, seeds, self.part), order, seeds, strict=True):
            twice = indices.repeat(2).to(views.device, non_blocking=True)
            augmented = self.augment(views, self._generator(derive_seed(seed, "augment", self.part.start or 0)))
            yield Batch(augmented, self.labels[twice], twice, self._generator(seed))

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.view.device).manual_seed(seed)


class Loop:
    """Trains one stage from its current position to its end, with a checkpoint after every epoch."""

    def __init__(
        self,
        stage: Stage,
        data: TrainingData,
        *,
        epochs: int,
        optim: OptimConfig,
        seed: int,
        checkpoints: Checkpoints,
        recorder: Recorder,
        validate: Callable[[], ValidationResult] | None = None,
        validate_every: int = 1,
        parameter_groups: list[dict[str, Any]] | None = None,
        stop: StopRequest | None = None,
        time_left: TimeEstimate | None = None,
        clock: PhaseClock | None = None,
    ) -> None:
        self.stage, self.data, self.epochs, self.optim, self.seed = stage, data, epochs, optim, seed
        self.validate, self.validate_every = validate, validate_every
        self.checkpoints, self.recorder = checkpoints, recorder
        self.stop = StopRequest() if stop is None else stop
        steps = {stage.name: epochs * data.sampler.steps_per_epoch}
        self.time_left = TimeEstimate(steps, 0.0) if time_left is None else time_left
        self.clock = PhaseClock() if clock is None else clock
        self.is_first_step = True
        self.position = Position()
        self.parameters = stage.network.trained_parameters()
        device = data.view.device
        on_gpu = device.type == "cuda"
        self.optimiser = torch.optim.SGD(
            parameter_groups or [{"params": list(self.parameters.values())}],
            lr=optim.lr,
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            fused=on_gpu,
        )
        # recorded steps read the learning rates from the device
        self._rates = [torch.zeros((), device=device) for _ in self.optimiser.param_groups] if on_gpu else []
        is_alone = stage.network.group.world == 1
        self.update: Update = RecordedUpdate(self.compute, stage.recording_key) if on_gpu and is_alone else self.compute

    def run(self) -> None:
        steps = self.data.sampler.steps_per_epoch
        self.recorder.open(self.stage.name, self.position.epoch * steps + self.position.step)
        self.stage.network.train()
        with progress_bar(self.recorder.console) as progress:
            done = self.position.epoch * steps + self.position.step
            self.time_left.begin(self.stage.name, done)
            task = progress.add_task(
                self.recorder.title(self.stage.name), total=self.epochs * steps, completed=done, note=""
            )
            while self.position.epoch < self.epochs:
                self._epoch(progress, task)
        self.recorder.close()

    def _epoch(self, progress: Progress, task: TaskID) -> None:
        position = self.position
        started = time.monotonic()
        with self.clock.phase(steps_of(self.stage.name)):
            record = self._steps(progress, task)
            self._check_finite()
        position.next_epoch()
        self.stage.network.group.sync_parameters(self.parameters.values())
        record |= self._validate()
        record["seconds"] = time.monotonic() - started
        self.recorder.epoch(record, position.epoch * self.data.sampler.steps_per_epoch)
        self.save()

    def _steps(self, progress: Progress, task: TaskID) -> dict[str, Any]:
        """The steps of an epoch, from the current one on; returns the record of the epoch, for which it waits."""
        position = self.position
        rate = self.set_learning_rate()
        if position.step == 0:  # not when an interrupted epoch is resumed
            self.stage.before_epoch(position.epoch)
        order = self.data.sampler.epoch(derive_seed(self.seed, self.stage.name, "order", position.epoch))
        seeds = [derive_seed(self.seed, self.stage.name, "step", position.epoch, step) for step in range(len(order))]
        means: AsyncScalars | None = None
        for batch in self._batches(order[position.step :], seeds[position.step :]):
            self._stop_if_requested()
            epochs_done = position.epoch + position.step / len(order)
            if self.is_first_step:
                self._first_step(batch, epochs_done)
            else:
                self.step(batch, epochs_done)
            progress.advance(task)
            if means is None and self.recorder.due():
                means = AsyncScalars(position.means())
            if means is not None and means.is_ready():
                values = means.values()
                self._raise_if_not_finite({key: values[key] for key in position.watched_sums()})
                done = position.epoch * len(order) + position.step
                self.time_left.update(done)
                progress.update(task, note=self.recorder.note(values, self.time_left.seconds_left(done)))
                means = None
        return {
            "stage": self.stage.name,
            "epoch": position.epoch + 1,
            "epochs": self.epochs,
            "lr": rate,
            **AsyncScalars(position.means()).values(),
        }

    def _first_step(self, batch: Batch, epochs_done: float) -> None:
        """A compiled network is compiled in the first step of a stage, which says nothing about the later ones.

        The host compiles before it starts the work on the device, so the time is right without waiting for the device.
        """
        self.is_first_step = False
        is_compiled = self.stage.network.vit.is_compiled
        with self.clock.phase(COMPILING if is_compiled else steps_of(self.stage.name)):
            self.step(batch, epochs_done)
        if is_compiled:
            position = self.position
            self.time_left.begin(self.stage.name, position.epoch * self.data.sampler.steps_per_epoch + position.step)

    def set_learning_rate(self) -> float:
        """Set the rate of each parameter group for the present epoch; returns that of the first group."""
        rate = learning_rate(self.optim, self.position.epoch, self.epochs)
        groups = self.optimiser.param_groups
        rates = [group.get("lr_scale", 1.0) * rate for group in groups]
        for i, group in enumerate(groups):
            group["lr"] = self._rates[i].fill_(rates[i]) if self._rates else rates[i]
        return rates[0]

    def step(self, batch: Batch, epochs_done: float) -> None:
        self.position.add(self.update(batch, epochs_done))
        self.position.step += 1
        self.stop.has_progressed = True

    def compute(self, batch: Batch, epochs_done: float) -> dict[str, Tensor]:
        """A step on the device: loss, gradient, new weights, and what the stage changes; returns the values to log."""
        result = self.stage.step(batch, epochs_done)
        self.optimiser.zero_grad(set_to_none=True)
        result.loss.backward()
        self.stage.network.all_reduce_gradients()
        norm = get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
        self.optimiser.step()
        self.stage.after_update()
        logs = {"loss": result.loss, "gradient_norm": norm, **result.logs}
        return {name: value.detach() for name, value in logs.items()}  # a reference would keep the whole backward graph

    def _batches(self, order: Tensor, seeds: Sequence[int]) -> Iterator[Batch]:
        try:
            yield from self.data.batches(order, seeds)
        except DataError:  # an image is missing: keep what was learned so far
            self.save()
            raise

    def _check_finite(self) -> None:
        """Raise if the loss or gradient of a step of this epoch, or a weight, is not finite; waits for the device."""
        weights = get_total_norm([p.detach() for p in self.parameters.values()], norm_type=math.inf)
        self._raise_if_not_finite(AsyncScalars({**self.position.watched_sums(), "weights": weights}).values())

    def _raise_if_not_finite(self, values: dict[str, float]) -> None:
        wrong = [_WATCHED[key] for key, value in values.items() if not math.isfinite(value)]
        if wrong:
            position = self.position
            raise TrainingError(
                f"{wrong[0]} no longer finite in {self.stage.name}, epoch {position.epoch + 1}, by step "
                f"{position.step}; {self.checkpoints.describe_last()}; lower optim.lr and start again with --overwrite"
            )

    def _validate(self) -> dict[str, float]:
        """Keep the best epoch: the later one of equals, and the last epoch without validation."""
        position = self.position
        if position.epoch != self.epochs and (self.validate is None or position.epoch % self.validate_every):
            return {}
        found: ValidationResult | None = None
        if self.validate is not None:
            with self.clock.phase(VALIDATION, self.data.view.device):
                found = self.validate()
        score = math.nan if found is None else found.score
        if not score < position.best_score:  # a score of NaN must not leave a stage without weights
            position.best_score, position.best_epoch = score, position.epoch
            with self.clock.phase(SAVING):
                self.checkpoints.save_best(self.stage.name, self.stage.network)
        return {} if found is None else found.logs()

    def _stop_if_requested(self) -> None:
        if self.stop.requested_by_any(self.stage.network.group):
            self.save()
            position = self.position
            raise Interrupted(
                f"stopped in {self.stage.name}, epoch {position.epoch + 1} of {self.epochs}, step {position.step}; "
                "run the same command with --resume to continue",
                self.stop.exit_code,
            )

    def save(self) -> None:
        """Write a checkpoint, unless a value is not finite."""
        self._check_finite()
        position = self.position
        state = {
            "stage": self.stage.name,
            "position": {**vars(position), "sums": dict(position.sums), "counts": dict(position.counts)},
            "network": {name: p.detach() for name, p in self.parameters.items()},
            "optimiser": self.optimiser.state_dict(),
            "stage_state": self.stage.state_dict(),
            "records": self.recorder.position(),
        }
        with self.clock.phase(SAVING):
            self.checkpoints.save_last(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``save`` was called."""
        with self.checkpoints.restoring():
            load_trained(self.stage.network, state["network"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.stage.load_state_dict(state["stage_state"])
            device = self.data.view.device
            position = dict(state["position"])
            position["sums"] = {key: value.to(device) for key, value in position["sums"].items()}
            self.position = Position(**position)
