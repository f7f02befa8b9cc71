"""Whitening: embeddings in which the labelled classes have equal spread in all directions."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class Whitening(NamedTuple):
    """x becomes (x - offset) matrix, L2-normalised."""

    offset: Tensor
    matrix: Tensor

    def apply(self, features: Tensor) -> Tensor:
        return F.normalize((features - self.offset) @ self.matrix, dim=1)


def whitening(features: Tensor, labels: np.ndarray, shrinkage: float) -> Whitening | None:
    """Whitening by the covariance within the classes of labelled embeddings (-1: no label); None if no class has two.

    With the covariance S_w within the classes and a the ``shrinkage``, S = (1 - a) S_w + a tr(S_w) / dim I, and x
    becomes S^-1/2 (x - m) with the mean m of the class means.
    """
    labelled = np.flatnonzero(labels >= 0)
    x = features[torch.from_numpy(labelled).to(features.device)]
    own = torch.from_numpy(np.unique(labels[labelled], return_inverse=True)[1]).to(features.device)
    sums = x.new_zeros(int(own.max()) + 1, x.shape[1]).index_add_(0, own, x)
    means = sums / own.bincount().unsqueeze(1)
    within = x - means[own]
    covariance = within.T @ within / max(1, len(x) - len(means))
    spread = covariance.trace() / len(covariance)
    if not spread > 0:
        return None
    identity = torch.eye(len(covariance), dtype=x.dtype, device=x.device)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * covariance + shrinkage * spread * identity)
    return Whitening(means.mean(dim=0), vectors * values.rsqrt())
