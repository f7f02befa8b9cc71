"""The network of a run on features of another model: the features as they are, or whitened."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ProjectionKind = Literal["none", "whitened"]


class FeatureNetwork(nn.Module):
    """The features as they are ("none"), or (x - offset) matrix, L2-normalised ("whitened"). Nothing is trained."""

    offset: Tensor
    matrix: Tensor

    def __init__(self, width: int, projection: ProjectionKind) -> None:
        super().__init__()
        self.embedding_width = width
        self.is_whitened = projection == "whitened"
        if self.is_whitened:
            self.register_buffer("offset", torch.zeros(width))
            self.register_buffer("matrix", torch.eye(width))

    smallest_side = 1  # no images are resized for it

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """It always computes in float32."""

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize((features - self.offset) @ self.matrix, dim=1) if self.is_whitened else features

    @torch.no_grad()
    def embed(self, features: Tensor, block: int = 4096) -> Tensor:
        """The embeddings of L2-normalised features, block by block; the features themselves if nothing changes them."""
        if not self.is_whitened:
            return features
        embeddings = torch.empty_like(features)
        for first in range(0, len(features), block):
            embeddings[first : first + block] = self(features[first : first + block])
        return embeddings
