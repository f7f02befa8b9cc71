"""The network of a run on features of another model: nothing, or a small projection that starts as the identity."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ProjectionKind = Literal["none", "linear", "mlp"]


class FeatureNetwork(nn.Module):
    """x + f(x), L2-normalised: f is 0, a linear layer, or two layers with a GELU between them; its last layer starts
    at 0. With the kind "none" it has no parameters."""

    def __init__(self, width: int, kind: ProjectionKind) -> None:
        super().__init__()
        self.embedding_width = width
        self.change: nn.Module | None = None
        if kind == "linear":
            self.change = nn.Linear(width, width, bias=False)
            nn.init.zeros_(self.change.weight)
        elif kind == "mlp":
            last = nn.Linear(2 * width, width, bias=False)
            nn.init.zeros_(last.weight)
            self.change = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), last)

    smallest_side = 1  # no images are resized for it

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """It always computes in float32."""

    def forward(self, features: Tensor) -> Tensor:
        return features if self.change is None else F.normalize(features + self.change(features), dim=1)

    @torch.no_grad()
    def embed(self, features: Tensor, block: int = 4096) -> Tensor:
        """The embeddings of L2-normalised features, block by block; the features themselves without a projection."""
        if self.change is None:
            return features
        embeddings = torch.empty_like(features)
        for first in range(0, len(features), block):
            embeddings[first : first + block] = self(features[first : first + block])
        return embeddings
