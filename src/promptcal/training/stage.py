"""A stage of training: the interface between the training loop and a method."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Both views of B images: rows 0..B-1 are the first views, rows B..2B-1 the second ones in the same order.

    Attributes:
        views: Normalised views (2B x 3 x side x side).
        labels: Class number of each view (2B), -1 = unlabelled.
        indices: Number of each view's image in the training set (2B).
        generator: Source of all random numbers.
    """

    views: Tensor
    labels: Tensor
    indices: Tensor
    generator: torch.Generator


class StepResult(NamedTuple):
    """The result of a step, as tensors so that nothing waits for the device.

    Attributes:
        loss: The loss to minimise (a scalar).
        logs: What to log, by name (scalars); the loop detaches them.
    """

    loss: Tensor
    logs: dict[str, Tensor]


class Stage(ABC):
    """What the training loop runs: the loss of a batch. A stage with state besides its network saves and loads it.

    Args:
        name: Name of the stage.
        network: What the optimiser updates.
        config: The settings of the run.

    Attributes:
        description: Text that is printed before training; it may be empty.
    """

    description = ""

    def __init__(self, name: str, network: Any, config: Any) -> None:
        self.name = name
        self.network = network
        self.config = config

    @abstractmethod
    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        """The loss of a batch.

        Args:
            batch: Both views of the images of the batch.
            epochs_done: Epochs that were finished before this step, with a fraction.

        Returns:
            The loss, and what to log.
        """

    def recording_key(self, epochs_done: float) -> Hashable | None:
        """All that a step depends on besides its batch and the values of tensors.

        In one process on a GPU, the training loop records the kernels of a step and replays them while the key stays
        the same. A stage may return a key if its steps never wait for the device, keep their tensors in place, and
        draw random numbers only from the batch's generator.

        Args:
            epochs_done: Epochs that were finished before this step, with a fraction.

        Returns:
            A key such as a tuple of numbers; None, the default, if the step cannot be recorded.
        """
        return None

    def before_epoch(self, epoch: int) -> None:  # noqa: B027
        """Called before the first step of each epoch.

        What it computes belongs to the stage's state: a run that is resumed within an epoch does not call it again.

        Args:
            epoch: Number of the epoch, from 0.
        """

    def after_update(self) -> None:  # noqa: B027
        """Called after each step of the optimiser."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep of the stage.

        Returns:
            Tensors and plain values by name.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Load what `state_dict` returned.

        Args:
            state: That dictionary.
        """
