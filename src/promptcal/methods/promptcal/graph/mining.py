"""Simpler rules for pseudo positives than the affinity graph, for the paper's ablations.

Like `affinity_graph`, both return a boolean mask of queries x nodes, where the nodes are [queries; memory].
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def neighbour_positives(queries: Tensor, memory: Tensor, k: int) -> Tensor:
    """The ``k`` nearest other nodes of each query by cosine ("naive kNN")."""
    nodes = F.normalize(torch.cat([queries, memory]).float(), dim=1)
    similarity = nodes[: len(queries)] @ nodes.T
    similarity.diagonal().fill_(-torch.inf)
    nearest = similarity.topk(min(k, max(0, len(nodes) - 1)), dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, nearest, True)


def ranking_positives(queries: Tensor, memory: Tensor, top: int) -> Tensor:
    """The other nodes with the same set of ``top`` largest features as the query (ranking statistics, Han 2020)."""
    nodes = torch.cat([queries, memory])
    largest = nodes.topk(min(top, nodes.shape[1]), dim=1).indices
    marks = torch.zeros_like(nodes, dtype=torch.float32).scatter_(1, largest, 1.0)
    shared = marks[: len(queries)] @ marks.T
    same = shared > largest.shape[1] - 0.5  # shared holds integers, in whatever precision the product is computed
    same.diagonal().fill_(False)
    return same
