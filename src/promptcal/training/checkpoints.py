"""Checkpoints on disk: `last.pt` to resume from, `previous.pt` as a backup, and the best weights of each stage."""

import errno
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from promptcal.runtime.phases import OTHER

FORMAT = 2
_PARTS = {
    "stage": str,
    "position": dict,
    "network": dict,
    "optimiser": dict,
    "stage_state": dict,
    "records": int,
    "random": dict,
}


class Checkpoints:
    """Every file is written under a temporary name and renamed, and has a checksum, so a file that is read is complete.

    ``phases`` returns the seconds that the run has taken so far, by phase, including the time before it was resumed. In
    a ``group`` of processes only the first one reads and writes files; the others get what it reads.
    """

    def __init__(self, folder: Path, phases: Callable[[], dict[str, float]] = dict, group: Group = ALONE) -> None:
        self.folder = folder
        self.phases = phases
        self.group = group
        self.last = folder / "last.pt"
        self.previous = folder / "previous.pt"  # in case the last one is damaged; used only if a person renames it

    def save_last(self, state: dict[str, Any]) -> None:
        """The last checkpoint becomes the previous one; both stay unchanged until the new one is complete."""
        if not self.group.is_first:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        complete = {"format": FORMAT, **state, "phases": self.phases(), "random": random_states()}
        write_with(self.last, lambda temporary: save_torch(complete, temporary), keep_as=self.previous)

    def load_last(self) -> dict[str, Any] | None:
        """The state to resume from, or None; the states of the random generators are restored."""
        return self.group.on_first(self._restore_last)

    def _restore_last(self) -> dict[str, Any] | None:
        if not self.last.exists():
            return None
        state = self._read_last()
        with self.restoring():
            restore_random_states(state.pop("random"))
        seconds = state.pop("seconds", None)  # of versions before 0.3, which did not store phases
        return {"phases": {} if seconds is None else {OTHER: seconds}, **state}

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Raise a `RunError` for any value of the last checkpoint that the run cannot continue with."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            message = f"{self.last} is not a checkpoint of this fit ({reason}); start the run again with --overwrite"
            raise RunError(message) from error

    def load_last_weights(self, network: DiscoveryNetwork) -> None:
        """Load the weights that training ended with into the network."""
        self._load_on_first(network, lambda: self._read_last()["network"], self.last)

    def _load_on_first(
        self, network: DiscoveryNetwork, read: Callable[[], dict[str, torch.Tensor]], file: Path
    ) -> None:
        def load() -> None:
            try:
                load_trained(network, read())
            except ValueError as error:
                raise RunError(
                    f"{file} does not fit its run ({error}); start the run again with --overwrite"
                ) from error

        self.group.on_first(load)
        self.group.broadcast_parameters(network.trained_parameters().values())

    def describe_last(self) -> str:
        """The last checkpoint in words, for error messages."""
        if not self.group.is_first:
            return "the first process has the last checkpoint"
        try:
            return f"the checkpoint after {_describe_position(self.last)} is kept in {self.last}"
        except OSError:
            return "there is no checkpoint yet"

    def _read_last(self) -> dict[str, Any]:
        try:
            state = read_torch(self.last)
        except OSError as error:
            raise RunError(f"the checkpoint {self.last} is damaged ({error.strerror}); {self._remedy()}") from error
        if isinstance(state, dict):
            check_format(state.get("format"), FORMAT, FORMAT, f"the checkpoint {self.last}")
        is_complete = isinstance(state, dict) and all(isinstance(state.get(key), kind) for key, kind in _PARTS.items())
        if not is_complete or not _has_durations(state):
            raise RunError(f"{self.last} is not a checkpoint of a fit; start the run again with --overwrite")
        return state

    def _remedy(self) -> str:
        try:
            position = _describe_position(self.previous)
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
        self._load_on_first(network, lambda: self._read_best(stage), self.best(stage))

    def _read_best(self, stage: str) -> dict[str, torch.Tensor]:
        try:
            return read_safetensors(self.best(stage))
        except OSError as error:
            raise RunError(
                f"the weights {self.best(stage)} are damaged ({error.strerror}); start the run again with --overwrite"
            ) from error


def _has_durations(state: dict[str, Any]) -> bool:
    phases = state.get("phases", {})
    if not isinstance(phases, dict) or not all(isinstance(name, str) for name in phases):
        return False
    durations = [state.get("seconds", 0.0), *phases.values()]
    return all(isinstance(seconds, float) and 0 <= seconds < math.inf for seconds in durations)


def _describe_position(file: Path) -> str:
    """When a checkpoint was written, such as `warmup, epoch 2, step 5`; `OSError` if the file is not a checkpoint."""
    state = read_torch(file)
    try:
        epoch, step = int(state["position"]["epoch"]), int(state["position"]["step"])
        within = f"epoch {epoch + 1}, step {step}" if step else f"epoch {epoch}"
        return f"{state['stage']}, {within}"
    except (LookupError, TypeError, ValueError) as error:
        raise OSError(errno.EIO, "not a checkpoint", str(file)) from error


@torch.no_grad()
def load_trained(network: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load weights by name; a `ValueError` if one does not fit the network or is not finite."""
    parameters = dict(network.named_parameters())
    for name, value in weights.items():
        if name not in parameters or value.shape != parameters[name].shape:
            raise ValueError(f"the network has no {name} of shape {tuple(value.shape)}")
        if not torch.isfinite(value.float()).all():
            raise ValueError(f"{name} has values that are not finite")
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
