"""The affinity graph of SemiAG, step by step: neighbours, consensus (Eq. 4), diffusion (Eq. 5), threshold."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.device import widest_float


def nearest_neighbours(embeddings: Tensor, k: int) -> Tensor:
    """Indices (N x min(k, N - 1)) of each node's nearest other nodes by cosine."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    unit = F.normalize(embeddings.float(), dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(k, max(0, len(unit) - 1)), dim=1).indices


def consensus_graph(embeddings: Tensor, k: int) -> Tensor:
    """Row-normalised consensus graph: entry (i, j) counts the nodes in whose neighbourhood both i and j lie.

    A node's neighbourhood is its ``k`` nearest by cosine and itself. The diagonal is 0.
    """
    n = len(embeddings)
    membership = torch.zeros(n, n, device=embeddings.device)
    membership.scatter_(1, nearest_neighbours(embeddings, k), 1.0)
    membership.fill_diagonal_(1.0)
    counts = membership.T @ membership
    counts.fill_diagonal_(0.0)
    return counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)


def neighbour_graph(embeddings: Tensor, k: int) -> Tensor:
    """Row-normalised graph of each node's ``k`` nearest others, not symmetrised: no consensus asked for."""
    neighbours = nearest_neighbours(embeddings, k)
    graph = torch.zeros(len(embeddings), len(embeddings), device=embeddings.device)
    return graph.scatter_(1, neighbours, 1.0 / max(1, neighbours.shape[1]))


def diffuse(graph: Tensor, steps: int = 1) -> Tensor:
    """Tensor-product-graph diffusion: ``Q <- G Q G^T + I``, from ``Q = G``, ``steps`` times (0: G itself)."""
    diffused = graph
    for _ in range(steps):
        diffused = graph @ diffused @ graph.T
        diffused.diagonal().add_(1.0)
    return diffused


def affinity_threshold(diffused: Tensor, quantile: float, include_diagonal: bool = True) -> Tensor:
    """The ``quantile`` (linear interpolation) of the entries above the mean of the non-zero ones.

    Where no entry lies above that mean, the mean itself, above which there is then nothing.
    """
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile must lie in [0, 1], not {quantile}")
    if include_diagonal:
        entries = diffused.flatten()
    else:
        off_diagonal = ~torch.eye(len(diffused), dtype=torch.bool, device=diffused.device)
        entries = diffused[off_diagonal]
    mean = entries.sum(dtype=widest_float(entries.device)) / torch.count_nonzero(entries).clamp(min=1)
    above = entries[entries > mean]
    if len(above) == 0:
        return mean.to(diffused.dtype)
    return _quantile(above, quantile)


def _quantile(values: Tensor, quantile: float) -> Tensor:
    """As ``torch.quantile``, without its limit of 16 million entries."""
    position = quantile * (len(values) - 1)
    below = int(position)
    low = values.kthvalue(below + 1).values
    high = values.kthvalue(min(below + 2, len(values))).values
    return low + (high - low) * (position - below)


class AffinityGraph(NamedTuple):
    """What SemiAG found: pseudo positives (query x node) and the threshold that made them."""

    positives: Tensor
    threshold: Tensor


def affinity_graph(
    queries: Tensor,
    memory: Tensor,
    k: int,
    quantile: float,
    *,
    steps: int = 1,
    include_diagonal: bool = True,
    consensus: bool = True,
) -> AffinityGraph:
    """Steps 1 to 5 of SemiAG on the nodes [queries; memory]: which nodes are positives of which query.

    Without ``consensus`` the plain neighbour graph takes the place of the consensus graph.
    """
    nodes = torch.cat([queries, memory])
    diffused = diffuse((consensus_graph if consensus else neighbour_graph)(nodes, k), steps)
    threshold = affinity_threshold(diffused, quantile, include_diagonal)
    return AffinityGraph(diffused[: len(queries)] > threshold, threshold)


def pseudo_positives(
    queries: Tensor,
    memory: Tensor,
    k: int,
    quantile: float,
    steps: int = 1,
    include_diagonal: bool = True,
) -> Tensor:
    """Boolean queries x memory: the memory entries whose diffused affinity to a query passes the threshold."""
    graph = affinity_graph(queries, memory, k, quantile, steps=steps, include_diagonal=include_diagonal)
    return graph.positives[:, len(queries) :]
