"""Clustering quality without labels: the silhouette, computed in blocks on whatever device the points are on."""

import torch
from torch import Tensor


def silhouette(points: Tensor, labels: Tensor, block: int = 2048) -> float:
    """Mean silhouette (Euclidean) in [-1, 1]; NaN with fewer than two clusters or only singletons.

    >>> round(silhouette(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([0, 0, 1, 1])), 3)
    0.98
    """
    points = points.float()
    clusters, labels = labels.unique(return_inverse=True)
    if not 2 <= len(clusters) < len(points):
        return float("nan")
    one_hot = torch.nn.functional.one_hot(labels).to(points.dtype)
    sizes = one_hot.sum(dim=0)
    total = 0.0
    for start in range(0, len(points), block):
        own = labels[start : start + block].unsqueeze(1)
        # matrix-product distances would not be exact to 0 for a point and itself
        distances = torch.cdist(points[start : start + block], points, compute_mode="donot_use_mm_for_euclid_dist")
        sums = distances @ one_hot
        own_size = sizes[own]
        within = sums.gather(1, own) / (own_size - 1).clamp(min=1)
        to_other = (sums / sizes).scatter(1, own, torch.inf).min(dim=1, keepdim=True).values
        scores = (to_other - within) / torch.maximum(within, to_other).clamp(min=1e-12)
        total += scores.masked_fill(own_size == 1, 0.0).sum().item()
    return total / len(points)
