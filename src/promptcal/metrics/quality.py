"""Clustering quality without labels: the silhouette, computed in blocks on the device of the points."""

import torch
from torch import Tensor


def silhouette(points: Tensor, labels: Tensor, block: int = 2048) -> float:
    r"""Mean silhouette coefficient with Euclidean distances, as scikit-learn's ``silhouette_score``, on any device.

    $$s = \frac{1}{N} \sum_{i=1}^N \frac{b_i - a_i}{\max(a_i, b_i)},$$

    where $a_i$ is the mean distance of point i to the other points of its cluster, and $b_i$ the mean
    distance to the points of the nearest other cluster. The only point of a cluster counts as 0.

    Args:
        points: The points (N x dim).
        labels: The cluster of each point (N).
        block: Points whose distances to all points are in memory at a time.

    Returns:
        A number from -1 to 1; NaN with fewer than two clusters, or if each point is a cluster.

    Examples:
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
        # by matrix products, the distance of a point to itself would not be exactly 0
        distances = torch.cdist(points[start : start + block], points, compute_mode="donot_use_mm_for_euclid_dist")
        sums = distances @ one_hot
        own_size = sizes[own]
        within = sums.gather(1, own) / (own_size - 1).clamp(min=1)
        to_other = (sums / sizes).scatter(1, own, torch.inf).min(dim=1, keepdim=True).values
        scores = (to_other - within) / torch.maximum(within, to_other).clamp(min=1e-12)
        total += scores.masked_fill(own_size == 1, 0.0).sum().item()
    return total / len(points)
