"""What the loop asks of a stage, and what it hands it."""

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
    """The loss to minimise and what to log, as tensors so that nothing waits for the device."""

    loss: Tensor
    logs: dict[str, Tensor]


class Stage(Protocol):
    name: str

    @property
    def network(self) -> DiscoveryNetwork:
        """What the optimiser moves."""

    def step(self, batch: Batch, epochs_done: float) -> StepResult: ...

    def after_update(self) -> None:
        """Called when the optimiser has moved the student."""

    def kept(self) -> dict[str, Tensor] | None:
        """Weights to look at and to keep, where these are not the network's own."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PlainStage:
    """A stage that carries nothing from one step to the next but its network."""

    def after_update(self) -> None:
        pass

    def kept(self) -> dict[str, Tensor] | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
