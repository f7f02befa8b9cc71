"""Checkpoints and records of several processes: only the first process reads and writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal.models import DiscoveryNetwork
from promptcal.runtime.distributed import Group
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.recorder import Recorder


class SharedCheckpoints(Checkpoints):
    """The first process reads and writes, and broadcasts what it reads; the others need no access to the folder."""

    def __init__(self, folder: Path, group: Group, elapsed: Callable[[], float]) -> None:
        super().__init__(folder, elapsed)
        self.group = group

    def save_last(self, state: dict[str, Any]) -> None:
        if self.group.is_first:
            super().save_last(state)

    def load_last(self) -> dict[str, Any] | None:
        return self.group.on_first(super().load_last)

    def describe_last(self) -> str:
        return super().describe_last() if self.group.is_first else "the first process has the last checkpoint"

    def load_last_weights(self, network: DiscoveryNetwork) -> None:
        self.group.on_first(lambda: super(SharedCheckpoints, self).load_last_weights(network))
        self.group.broadcast_parameters(network.trained_parameters().values())

    def save_best(self, stage: str, network: DiscoveryNetwork) -> None:
        if self.group.is_first:
            super().save_best(stage, network)

    def load_best(self, stage: str, network: DiscoveryNetwork) -> None:
        self.group.on_first(lambda: super(SharedCheckpoints, self).load_best(stage, network))
        self.group.broadcast_parameters(network.trained_parameters().values())


class NoRecorder(Recorder):
    """For the processes that write nothing."""

    def position(self) -> int:
        return 0

    def rewind(self, position: int) -> None:
        pass

    def open(self, stage: str, global_step: int) -> None:
        pass

    def epoch(self, record: dict[str, Any], global_step: int) -> None:
        pass


def recorder_of(group: Group, folder: Path, console: Console, *, tensorboard: bool) -> Recorder:
    return (Recorder if group.is_first else NoRecorder)(folder, console, tensorboard=tensorboard)
