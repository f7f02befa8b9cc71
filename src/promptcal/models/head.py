"""Heads: a cosine classifier, DINO's projection head, and the cosine of its outputs without computing the outputs.

DINO's output is a 65,536-wide unit vector, but the losses need only cosines of such vectors. With unit rows W and
256-wide bottlenecks x, y the cosine is ``x^T M y / sqrt(x^T M x * y^T M y)``, ``M = W^T W`` only 256 x 256.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Projection(NamedTuple):
    """A head's output in factored form: unit bottlenecks (n x 256) and the head's unit prototypes (65536 x 256)."""

    bottleneck: Tensor
    prototypes: Tensor


class DINOHead(nn.Module):
    """dim - hidden - hidden - bottleneck with GELU, L2, then a weight-normalised linear map with gain 1."""

    def __init__(self, dim: int, hidden: int = 2048, bottleneck: int = 256, prototypes: int = 65536) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.last_layer = nn.Linear(bottleneck, prototypes, bias=False)
        initialize_projection(self.mlp)

    def forward(self, embedding: Tensor) -> Projection:
        bottleneck = F.normalize(self.mlp(embedding).float(), dim=1)
        return Projection(bottleneck, F.normalize(self.last_layer.weight.float(), dim=1))


def initialize_projection(layers: nn.Sequential) -> None:
    """DINO's initial values: weights from a truncated normal distribution (standard deviation 0.02), biases 0."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)


class CosineClassifier(nn.Module):
    """Cosine similarity of the input to one prototype per category.

    The prototypes start as the weights of PyTorch's linear layer, with ``unit_length`` with norm 1. The norm does not
    change a cosine, but a gradient step turns a shorter prototype further.
    """

    def __init__(self, dim: int, categories: int, *, unit_length: bool = False) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.empty(categories, dim))
        if unit_length:
            nn.init.uniform_(self.prototypes, -1.0, 1.0)
            self.normalize()
        else:
            nn.init.uniform_(self.prototypes, -(dim**-0.5), dim**-0.5)

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(features.float(), dim=1) @ F.normalize(self.prototypes.float(), dim=1).T

    @torch.no_grad()
    def normalize(self) -> None:
        """Scale each prototype to norm 1."""
        self.prototypes.copy_(F.normalize(self.prototypes, dim=1))

    @torch.no_grad()
    def initialize_from(self, centroids: Tensor) -> None:
        """Set the prototypes to the centroids of existing clusters."""
        self.prototypes.copy_(centroids)


def projected_cosine(queries: Projection, keys: Projection) -> Tensor:
    """Exact cosines between the outputs of two heads (queries x keys), with exact gradients.

    Student and teacher heads have different prototypes, so up to three Gram matrices are needed.
    """
    same_head = queries.prototypes is keys.prototypes
    queries, keys = (Projection(*map(_at_least_float32, projection)) for projection in (queries, keys))
    query_gram = queries.prototypes.T @ queries.prototypes
    key_gram = query_gram if same_head else keys.prototypes.T @ keys.prototypes
    cross_gram = query_gram if same_head else queries.prototypes.T @ keys.prototypes
    cross = queries.bottleneck @ cross_gram @ keys.bottleneck.T
    query_norm = ((queries.bottleneck @ query_gram) * queries.bottleneck).sum(dim=1)
    key_norm = ((keys.bottleneck @ key_gram) * keys.bottleneck).sum(dim=1)
    # clamp before the square root, whose gradient at 0 is infinite
    return cross / torch.sqrt((query_norm.unsqueeze(1) * key_norm.unsqueeze(0)).clamp(min=1e-24))


def _at_least_float32(rows: Tensor) -> Tensor:
    """Half precision as float32, because it would round the lower bound of the norms to 0."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
