"""Checkpoints on disk: `last.pt` to resume from, `previous.pt` as a backup, and the best weights of each stage."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from promptcal.errors import RunError
from promptcal.models import DiscoveryNetwork
from promptcal.runtime.distributed import ALONE, Group
from promptcal.runtime.files import read_safetensors, read_torch, save_torch, write_safetensors, write_with
from promptcal.runtime.json_model import check_format

FORMAT = 2
_PARTS = ("stage", "position", "network", "optimiser", "stage_state", "records", "random")


class Checkpoints:
    """Every file is written under a temporary name and renamed, and has a checksum, so a file that is read is complete.

    ``elapsed`` returns the seconds that the run has taken so far, including the time before it was resumed. In a
    ``group`` of processes only the first one reads and writes files; the others get what it reads.
    """

    def __init__(self, folder: Path, elapsed: Callable[[], float] = lambda: 0.0, group: Group = ALONE) -> None:
        self.folder = folder
        self.elapsed = elapsed
        self.group = group
        self.last = folder / "last.pt"
        self.previous = folder / "previous.pt"  # in case the last one is damaged; used only if a person renames it

    def save_last(self, state: dict[str, Any]) -> None:
        """The last checkpoint becomes the previous one; both stay unchanged until the new one is complete."""
        if not self.group.is_first:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        complete = {"format": FORMAT, **state, "seconds": self.elapsed(), "random": random_states()}
        write_with(self.last, lambda temporary: save_torch(complete, temporary), keep_as=self.previous)

    def load_last(self) -> dict[str, Any] | None:
        """The state to resume from, or None; the states of the random generators are restored."""
        return self.group.on_first(self._restore_last)

    def _restore_last(self) -> dict[str, Any] | None:
        if not self.last.exists():
            return None
        state = self._read_last()
        restore_random_states(state.pop("random"))
        return state

    def load_last_weights(self, network: DiscoveryNetwork) -> None:
        """Load the weights that training ended with into the network."""
        self._load_on_first(network, lambda: self._read_last()["network"])

    def _load_on_first(self, network: DiscoveryNetwork, read: Callable[[], dict[str, torch.Tensor]]) -> None:
        self.group.on_first(lambda: load_trained(network, read()))
        self.group.broadcast_parameters(network.trained_parameters().values())

    def describe_last(self) -> str:
        """The last checkpoint in words, for error messages."""
        if not self.group.is_first:
            return "the first process has the last checkpoint"
        try:
            return f"the checkpoint after {_describe_position(read_torch(self.last))} is kept in {self.last}"
        except OSError:
            return "there is no checkpoint yet"

    def _read_last(self) -> dict[str, Any]:
        try:
            state = read_torch(self.last)
        except OSError as error:
            raise RunError(f"the checkpoint {self.last} is damaged ({error.strerror}); {self._remedy()}") from error
        if isinstance(state, dict):
            check_format(state.get("format"), FORMAT, FORMAT, f"the checkpoint {self.last}")
        is_complete = isinstance(state, dict) and all(key in state for key in _PARTS)
        if not is_complete or not _is_duration(state.get("seconds", 0.0)):
            raise RunError(f"{self.last} is not a checkpoint of a fit; start the run again with --overwrite")
        return state

    def _remedy(self) -> str:
        try:
            position = _describe_position(read_torch(self.previous))
        except OSError:
            return "there is no intact previous checkpoint, so start the run again with --overwrite"
        return f"the previous checkpoint ({position}) is intact: to resume from it, rename {self.previous} to last.pt"

    def best(self, stage: str) -> Path:
        return self.folder / f"{stage}-best.safetensors"

    def save_best(self, stage: str, network: DiscoveryNetwork) -> None:
        if self.group.is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_safetensors(self.best(stage), {n: p.detach() for n, p in network.trained_parameters().items()})

    def load_best(self, stage: str, network: DiscoveryNetwork) -> None:
        """Load a stage's best weights into the network."""
        self._load_on_first(network, lambda: self._read_best(stage))

    def _read_best(self, stage: str) -> dict[str, torch.Tensor]:
        try:
            return read_safetensors(self.best(stage))
        except OSError as error:
            raise RunError(
                f"the weights {self.best(stage)} are damaged ({error.strerror}); start the run again with --overwrite"
            ) from error


def _is_duration(seconds: Any) -> bool:
    return isinstance(seconds, float) and 0 <= seconds < math.inf


def _describe_position(state: dict[str, Any]) -> str:
    """When a checkpoint was written, such as `warmup, epoch 2, step 5`."""
    epoch, step = state["position"]["epoch"], state["position"]["step"]
    within = f"epoch {epoch + 1}, step {step}" if step else f"epoch {epoch}"
    return f"{state['stage']}, {within}"


@torch.no_grad()
def load_trained(network: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    parameters = dict(network.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)


def random_states() -> dict[str, Any]:
    """States of the global generators, which backbones with dropout use; methods derive their draws from the seed."""
    python = random.getstate()
    numpy: Any = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [numpy[0], torch.from_numpy(np.asarray(numpy[1]).astype(np.int64)), *numpy[2:]],
        "python": [python[0], list(python[1]), python[2]],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
