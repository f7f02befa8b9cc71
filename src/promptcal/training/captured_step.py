"""Steps captured as a CUDA graph: one launch replays all kernels of a step, which take longer to launch than to run."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from promptcal.training.stage import Batch

Compute = Callable[[Batch, float], dict[str, Tensor]]
Update = Callable[[Compute, Batch, float], dict[str, Tensor]]


def plain_update(compute: Compute, batch: Batch, epochs_done: float) -> dict[str, Tensor]:
    """Compute a step without a graph."""
    return compute(batch, epochs_done)


@dataclass(frozen=True)
class CapturedStep:
    """A step as a CUDA graph, the batch that it reads, and the values to log that it overwrites at each replay."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    logs: dict[str, Tensor]

    @classmethod
    def of(cls, compute: Compute, batch: Batch, epochs_done: float) -> "CapturedStep":
        """Capture ``compute``. Nothing is computed before the first replay."""
        generator = torch.Generator(batch.views.device)
        own = Batch(batch.views.clone(), batch.labels.clone(), batch.indices.clone(), generator)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        # other threads may load images meanwhile, and may use the device for that
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logs = compute(own, epochs_done)
        return cls(graph, own, logs)

    def replay(self, batch: Batch) -> dict[str, Tensor]:
        for own, values in zip(self.batch[:3], batch[:3], strict=True):
            own.copy_(values)
        self.batch.generator.manual_seed(batch.generator.initial_seed())
        self.graph.replay()
        return self.logs


class CapturedUpdate:
    """Computes steps. It captures one when two in a row have the same key, and replays it while the key stays.

    A step is the forward pass, the backward pass and all changes of weights and memories. It must neither wait for the
    device nor change values that are not on the device.

    Args:
        key: Called with the epochs done. Returns all that a step depends on besides its batch and the values of
            tensors, or None if it cannot be captured.
    """

    def __init__(self, key: Callable[[float], Hashable | None]) -> None:
        self.key = key
        self._last_key: Hashable | None = None
        self._captured: CapturedStep | None = None

    @property
    def is_captured(self) -> bool:
        return self._captured is not None

    def __call__(self, compute: Compute, batch: Batch, epochs_done: float) -> dict[str, Tensor]:
        """The values to log; those of a replayed step are valid until the next call."""
        key = self.key(epochs_done)
        key = None if key is None else (batch.views.shape, key)
        if key is None or key != self._last_key:
            self._last_key, self._captured = key, None
            return compute(batch, epochs_done)
        if self._captured is None:
            self._captured = CapturedStep.of(compute, batch, epochs_done)
        return self._captured.replay(batch)
