"""Steps recorded as a CUDA graph: one launch replays all kernels of a step, which take longer to launch than to run."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from promptcal.training.stage import Batch

Update = Callable[[Batch, float], dict[str, Tensor]]


@dataclass(frozen=True)
class Recording:
    """A recorded step: its graph, the batch that it reads, and the values that it overwrites at each replay."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    logs: dict[str, Tensor]

    @classmethod
    def of(cls, update: Update, batch: Batch, epochs_done: float) -> "Recording":
        """Record ``update``. Nothing is computed before the first replay."""
        generator = torch.Generator(batch.views.device)
        own = Batch(batch.views.clone(), batch.labels.clone(), batch.indices.clone(), generator)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        # other threads may load images meanwhile, and may use the device for that
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logs = update(own, epochs_done)
        return cls(graph, own, logs)

    def replay(self, batch: Batch) -> dict[str, Tensor]:
        for own, values in zip(self.batch[:3], batch[:3], strict=True):
            own.copy_(values)
        self.batch.generator.manual_seed(batch.generator.initial_seed())
        self.graph.replay()
        return self.logs


class RecordedUpdate:
    """Computes updates. It records one when two in a row have the same key, and replays it while the key stays.

    Args:
        update: The forward pass, the backward pass and all changes of weights and memories. It must neither wait for
            the device nor change values that are not on the device. It returns the values to log.
        key: Called with the epochs done. Returns all that an update depends on besides its batch and the values of
            tensors, or None if it cannot be recorded.
    """

    def __init__(self, update: Update, key: Callable[[float], Hashable | None]) -> None:
        self.update = update
        self.key = key
        self._last_key: Hashable | None = None
        self._recording: Recording | None = None

    @property
    def is_recorded(self) -> bool:
        return self._recording is not None

    def __call__(self, batch: Batch, epochs_done: float) -> dict[str, Tensor]:
        """The values to log; those of a replayed update are valid until the next call."""
        key = self.key(epochs_done)
        key = None if key is None else (batch.views.shape, key)
        if key is None or key != self._last_key:
            self._last_key, self._recording = key, None
            return self.update(batch, epochs_done)
        if self._recording is None:
            self._recording = Recording.of(self.update, batch, epochs_done)
        return self._recording.replay(batch)
