"""Checkpoints on disk: `last.pt` to go on from exactly, `previous.pt` the one before it, and best weights by stage."""

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
from promptcal.runtime.files import read_safetensors, read_torch, save_torch, write_safetensors, write_with
from promptcal.runtime.json_model import check_format

FORMAT = 2
_PARTS = ("stage", "position", "network", "optimiser", "stage_state", "records", "random")


class Checkpoints:
    """Every file is written under a temporary name and renamed, and has a checksum, so a file that is read is whole.

    ``spent`` says how many seconds the run has taken so far, in all its pieces.
    """

    def __init__(self, folder: Path, spent: Callable[[], float] = lambda: 0.0) -> None:
        self.folder = folder
        self.spent = spent

    @property
    def last(self) -> Path:
        return self.folder / "last.pt"

    @property
    def previous(self) -> Path:
        """The one before the last, in case that is damaged; nothing reads it until a person renames it."""
        return self.folder / "previous.pt"

    def save_last(self, state: dict[str, Any]) -> None:
        """The last checkpoint becomes the previous one; until the new one is whole, both are as they were."""
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = {"format": FORMAT, **state, "seconds": self.spent(), "random": random_states()}
        write_with(self.last, lambda temporary: save_torch(whole, temporary), keep_as=self.previous)

    def load_last(self) -> dict[str, Any] | None:
        """The state to go on from, or None; the random states are put back."""
        if not self.last.exists():
            return None
        state = self._read_last()
        restore_random_states(state.pop("random"))
        return state

    def load_last_weights(self, network: DiscoveryNetwork) -> None:
        """Put the weights that training ended with into the network."""
        load_trained(network, self._read_last()["network"])

    def describe_last(self) -> str:
        """The last checkpoint in words, for whoever must stop."""
        try:
            state = read_torch(self.last)
            return f"the checkpoint after {_place(state)} is kept in {self.last}"
        except OSError:
            return "there is no checkpoint yet"

    def _read_last(self) -> dict[str, Any]:
        try:
            state = read_torch(self.last)
        except OSError as error:
            reason = f"the checkpoint {self.last} is damaged ({error.strerror})"
            raise RunError(f"{reason}; {self._remedy()}") from error
        return self._checked(state)

    def _checked(self, state: Any) -> dict[str, Any]:
        """Of a format that is known, and with all that a run goes on from."""
        if isinstance(state, dict):
            check_format(state.get("format"), FORMAT, FORMAT, f"the checkpoint {self.last}")
        is_one = isinstance(state, dict) and all(key in state for key in _PARTS)
        if not is_one or not _is_duration(state.get("seconds", 0.0)):
            raise RunError(f"the checkpoint {self.last} is not one of a fit; start the run anew with --overwrite")
        return state

    def _remedy(self) -> str:
        try:
            place = _place(read_torch(self.previous))
        except OSError:
            return "there is no whole one before it, so start the run anew with --overwrite"
        return (
            f"the one before it is whole ({place}): to go on from there, rename {self.previous} to last.pt and resume"
        )

    def best(self, stage: str) -> Path:
        return self.folder / f"{stage}-best.safetensors"

    def save_best(self, stage: str, network: DiscoveryNetwork) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(self.best(stage), {n: p.detach() for n, p in network.trained_parameters().items()})

    def load_best(self, stage: str, network: DiscoveryNetwork) -> None:
        """Put a stage's best weights into the network."""
        try:
            load_trained(network, read_safetensors(self.best(stage)))
        except OSError as error:
            raise RunError(
                f"the weights {self.best(stage)} are damaged ({error.strerror}); start the run anew with --overwrite"
            ) from error


def _is_duration(seconds: Any) -> bool:
    return isinstance(seconds, float) and 0 <= seconds < math.inf


def _place(state: dict[str, Any]) -> str:
    """Where a checkpoint was made, as `warmup, epoch 2, step 5`."""
    epoch, step = state["position"]["epoch"], state["position"]["step"]
    within = f"epoch {epoch + 1}, step {step}" if step else f"epoch {epoch}"
    return f"{state['stage']}, {within}"


@torch.no_grad()
def load_trained(network: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    parameters = dict(network.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)


def random_states() -> dict[str, Any]:
    """The global generators', for backbones that draw (dropout); the method's own draws derive from the seed."""
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
