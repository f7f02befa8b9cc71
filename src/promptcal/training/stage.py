"""The interface between the training loop and a stage."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from promptcal.models import DiscoveryNetwork


class Batch(NamedTuple):
    """Both views of B images: rows 0..B-1 are the first views, rows B..2B-1 the second ones in the same order."""

    views: Tensor
    labels: Tensor
    indices: Tensor
    generator: torch.Generator


class StepResult(NamedTuple):
    """The loss to minimise and values to log, as tensors, so that the step does not wait for the device."""

    loss: Tensor
    logs: dict[str, Tensor]


class Stage(Protocol):
    """A stage of a method. ``description`` is printed before training; it may be empty."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def network(self) -> DiscoveryNetwork:
        """The network whose parameters the optimiser updates."""

    def step(self, batch: Batch, epochs_done: float) -> StepResult: ...

    def after_update(self) -> None:
        """Called after the optimiser has updated the network."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PlainStage:
    """A stage without any state besides its network; a subclass has a `step`."""

    description = ""

    def __init__(self, name: str, network: Any, config: Any) -> None:
        self.name = name
        self.network = network
        self.config = config

    def after_update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
