"""A first-in-first-out memory of teacher embeddings: ring buffers on the device."""

from typing import Any

import torch
from torch import Tensor


class EmbeddingMemory:
    """The last ``size`` embeddings, with their labels (-1 = unlabelled) and image indices; only the filled rows.

    The number of filled rows is a host integer and the pointer is on the device, so that `push` does not wait, and can
    be recorded in a CUDA graph once all rows are filled.
    """

    def __init__(self, size: int, dim: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        unknown = torch.full((size,), -1, dtype=torch.long, device=device)
        embeddings = torch.zeros(size, dim, device=device)
        self._rings = {"embeddings": embeddings, "labels": unknown, "indices": unknown.clone()}
        self._pointer = torch.zeros((), dtype=torch.long, device=device)
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def embeddings(self) -> Tensor:
        return self._rings["embeddings"][: self._filled]

    @property
    def labels(self) -> Tensor:
        return self._rings["labels"][: self._filled]

    @property
    def indices(self) -> Tensor:
        return self._rings["indices"][: self._filled]

    def push(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> None:
        """Add rows in place of the oldest ones. Of more than ``size`` rows, only the last ``size`` are kept."""
        n = min(self.size, len(embeddings))
        slots = (self._pointer + torch.arange(n, device=self._pointer.device)) % self.size
        for ring, rows in zip(self._rings.values(), (embeddings, labels, indices), strict=True):
            ring.index_copy_(0, slots, rows.detach()[len(rows) - n :].to(ring.dtype))
        self._pointer.add_(n).remainder_(self.size)
        self._filled = min(self.size, self._filled + n)

    def state_dict(self) -> dict[str, Any]:
        return {**self._rings, "pointer": int(self._pointer), "filled": self._filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, ring in self._rings.items():
            ring.copy_(state[name])
        self._pointer.fill_(state["pointer"])
        self._filled = state["filled"]
