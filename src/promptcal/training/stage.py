"""A stage of training: the interface between the training loop and a method."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Both views of B images: rows 0..B-1 are the first views, rows B..2B-1 the second ones in the same order."""

    views: Tensor
    labels: Tensor
    indices: Tensor
    generator: torch.Generator


class StepResult(NamedTuple):
    """The loss to minimise and what to log (the loop detaches it), as tensors so that nothing waits for the device."""

    loss: Tensor
    logs: dict[str, Tensor]


class Stage(ABC):
    """What the training loop runs: the loss of a batch. A stage with state besides its network saves and loads it.

    ``description`` is printed before training; it may be empty. ``network`` is what the optimiser updates.
    """

    description = ""

    def __init__(self, name: str, network: Any, config: Any) -> None:
        self.name = name
        self.network = network
        self.config = config

    @abstractmethod
    def step(self, batch: Batch, epochs_done: float) -> StepResult: ...

    def before_epoch(self, epoch: int) -> None:  # noqa: B027
        """Called before the first step of each epoch (from 0).

        What it computes belongs to the stage's state: a run that is resumed within an epoch does not call it again.
        """

    def after_update(self) -> None:  # noqa: B027
        """Called after each step of the optimiser."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Load what `state_dict` returned."""
