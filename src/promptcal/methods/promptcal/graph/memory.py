"""A first-in-first-out memory of teacher embeddings: ring buffers on the device."""

from typing import Any

import torch
from torch import Tensor


class EmbeddingMemory:
    """The last ``size`` embeddings, with their labels (-1 = unlabelled) and image indices.

    The properties return only the filled rows. The pointer and the number of filled rows are host integers, so that
    `push` does not synchronise with the device.
    """

    def __init__(self, size: int, dim: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self._embeddings = torch.zeros(size, dim, device=device)
        self._labels = torch.full((size,), -1, dtype=torch.long, device=device)
        self._indices = torch.full((size,), -1, dtype=torch.long, device=device)
        self._pointer = 0
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def embeddings(self) -> Tensor:
        return self._embeddings[: self._filled]

    @property
    def labels(self) -> Tensor:
        return self._labels[: self._filled]

    @property
    def indices(self) -> Tensor:
        return self._indices[: self._filled]

    def push(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> None:
        """Add rows in place of the oldest ones. Of more than ``size`` rows, only the last ``size`` are kept."""
        embeddings, labels, indices = (
            rows.detach()[-self.size :] if self.size else rows.detach()[:0] for rows in (embeddings, labels, indices)
        )
        n = len(embeddings)
        until_end = min(n, self.size - self._pointer)
        for ring, rows in ((self._embeddings, embeddings), (self._labels, labels), (self._indices, indices)):
            ring[self._pointer : self._pointer + until_end] = rows[:until_end]
            ring[: n - until_end] = rows[until_end:]
        if self.size:
            self._pointer = (self._pointer + n) % self.size
        self._filled = min(self.size, self._filled + n)

    def state_dict(self) -> dict[str, Any]:
        return {
            "embeddings": self._embeddings,
            "labels": self._labels,
            "indices": self._indices,
            "pointer": self._pointer,
            "filled": self._filled,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._embeddings.copy_(state["embeddings"])
        self._labels.copy_(state["labels"])
        self._indices.copy_(state["indices"])
        self._pointer, self._filled = state["pointer"], state["filled"]
