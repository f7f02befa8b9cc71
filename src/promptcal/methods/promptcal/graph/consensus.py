"""Graphs of embeddings: nearest neighbours by cosine, the plain neighbour graph, and the consensus graph (Eq. 4)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def nearest_neighbours(embeddings: Tensor, k: int) -> Tensor:
    """Indices (N x min(k, N - 1)) of each node's nearest other nodes by cosine similarity."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    unit = F.normalize(embeddings.float(), dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(k, max(0, len(unit) - 1)), dim=1).indices


def consensus_graph(embeddings: Tensor, k: int) -> Tensor:
    """Row-normalised consensus graph (N x N): entry (i, j) counts the neighbourhoods that contain both i and j.

    The neighbourhood of a node is its ``k`` nearest neighbours by cosine and the node itself. The diagonal is 0.
    """
    n = len(embeddings)
    membership = torch.zeros(n, n, device=embeddings.device)
    membership.scatter_(1, nearest_neighbours(embeddings, k), 1.0)
    membership.fill_diagonal_(1.0)
    counts = membership.T @ membership
    counts.fill_diagonal_(0.0)
    return counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)


def neighbour_graph(embeddings: Tensor, k: int) -> Tensor:
    """Row-normalised graph (N x N) of each node's ``k`` nearest neighbours, without consensus; not symmetric."""
    neighbours = nearest_neighbours(embeddings, k)
    graph = torch.zeros(len(embeddings), len(embeddings), device=embeddings.device)
    return graph.scatter_(1, neighbours, 1.0 / max(1, neighbours.shape[1]))
