"""The affinity graph of SemiAG: neighbours, consensus (Eq. 4), diffusion (Eq. 5), threshold; and its backends."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from promptcal.methods.promptcal.graph.diffusion import (
    HALF_SCALE,
    Memberships,
    consensus_graph,
    diffuse,
    diffused_columns,
    nearest_neighbours,
    neighbour_columns,
    neighbour_graph,
    sparse_diffusion,
    split_fp16_diffusion,
)
from promptcal.methods.promptcal.graph.kernels import quantile_above_mean

MAX_EXACT_NODES = 8192  # up to this number of nodes, a dense matrix of all pairs is computed
SAMPLED_ROWS = 4096  # with more nodes, this number of rows determines the threshold

Backend = Literal["sparse", "split_fp16", "dense", "sampled"]


class GraphSettings(NamedTuple):
    """Settings of the affinity graph.

    Attributes:
        k: Nearest neighbours of each node.
        quantile: Quantile of the large affinities that is the threshold, from 0 to 1.
        steps: Diffusion steps.
        include_diagonal: Whether the diagonal counts for the threshold.
        consensus: Whether to use the consensus graph, or else the plain neighbour graph.
    """

    k: int
    quantile: float
    steps: int = 1
    include_diagonal: bool = True
    consensus: bool = True


class AffinityGraph(NamedTuple):
    """Pseudo positives and their threshold.

    Attributes:
        positives: Which nodes are positives of each query (boolean, queries x nodes).
        threshold: The affinity above which a pair is positive (a scalar).
        exact: Whether the threshold comes from all rows; false if rows were sampled for it.
    """

    positives: Tensor
    threshold: Tensor
    exact: bool = True


def affinity_graph(queries: Tensor, memory: Tensor, settings: GraphSettings) -> AffinityGraph:
    r"""Pseudo positives of each query among the nodes [queries; memory] (SemiAG, steps 1 to 5).

    With $A_{ij} = 1$ if node j is node i itself or one of its ``k`` nearest neighbours by cosine, the consensus
    graph G is $A^T A$ with a zero diagonal and normalised rows. One diffusion step is

    $$Q \leftarrow G Q G^T + I, \qquad Q_0 = G.$$

    Entry (i, j) is a pseudo positive if $Q_{ij}$ exceeds the threshold: the ``quantile`` of the entries of Q that
    are above the mean of its non-zero entries.

    `dense_affinity_graph` is this definition; `select_backend` chooses the fastest computation of it.

    Args:
        queries: Embeddings (n x dim), not necessarily normalised.
        memory: More embeddings (m x dim); they are nodes, but not queries.
        settings: Neighbours, quantile and steps.

    Returns:
        The positives (boolean, n x (n + m)), the threshold, and whether it is exact.

    Examples:
        >>> classes = torch.arange(60) % 3
        >>> noise = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        >>> nodes = torch.nn.functional.one_hot(classes) + 0.1 * noise
        >>> settings = GraphSettings(k=5, quantile=0.5, include_diagonal=False)
        >>> positives = affinity_graph(nodes[:6], nodes[6:], settings).positives
        >>> positives.shape, int(positives.sum()), bool((positives & (classes[:6, None] != classes)).any())
        (torch.Size([6, 60]), 34, False)
    """
    nodes = torch.cat([queries, memory])
    compute = _BACKENDS[select_backend(len(nodes), settings, nodes.device)]
    return compute(nodes, len(queries), settings)


def select_backend(n: int, settings: GraphSettings, device: torch.device) -> Backend:
    """The fastest backend for ``n`` nodes. All are exact but "sampled", which is for many nodes."""
    if device.type == "cpu" and 16 * settings.k < n:  # with more neighbours, rows are hardly sparse
        return "sparse"
    if n > MAX_EXACT_NODES:
        return "sampled"
    if device.type == "cuda" and settings.consensus and settings.steps == 1 and n > 1:
        return "split_fp16"
    return "dense"


def dense_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    """The definition, step by step."""
    graph = (consensus_graph if settings.consensus else neighbour_graph)(nodes, settings.k)
    return _apply_threshold(diffuse(graph, settings.steps), n_queries, settings)


def split_fp16_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    diffused = split_fp16_diffusion(nearest_neighbours(nodes, settings.k))
    diffused.diagonal().add_(1.0)
    return _apply_threshold(diffused, n_queries, settings)


def affinity_threshold(diffused: Tensor, quantile: float, include_diagonal: bool = True) -> Tensor:
    """`quantile_above_mean` of all entries of a square matrix, or of all entries off its diagonal."""
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile must lie in [0, 1], not {quantile}")
    if not include_diagonal:
        diffused = diffused.clone().fill_diagonal_(0.0)  # zeros are ignored
    return quantile_above_mean(diffused, quantile)


def _apply_threshold(diffused: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    threshold = affinity_threshold(diffused, settings.quantile, settings.include_diagonal)
    return AffinityGraph(diffused[:n_queries] > threshold, threshold)


def sparse_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    diffused = sparse_diffusion(nearest_neighbours(nodes, settings.k), settings.steps, settings.consensus)
    rows = torch.from_numpy(diffused[:n_queries].toarray())
    if not settings.include_diagonal:
        diffused.setdiag(0.0)
    threshold = quantile_above_mean(torch.from_numpy(diffused.data), settings.quantile)
    return AffinityGraph(rows > threshold, threshold)


def sampled_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    """Computes the queries' rows only, and evenly spaced rows for the threshold."""
    neighbours = nearest_neighbours(nodes, settings.k)
    queries = torch.arange(n_queries, device=nodes.device)
    spaced = torch.linspace(0, len(nodes) - 1, SAMPLED_ROWS, device=nodes.device).round().long()
    scale = 1.0
    if settings.consensus:
        graph = Memberships.of(neighbours)
        found = diffused_columns(graph, queries, settings.steps)
        if nodes.device.type == "cuda":  # half the bytes; the sample's own error is larger than that of rounding
            sample, scale = diffused_columns(graph, spaced, settings.steps, torch.float16), HALF_SCALE
        else:
            sample = diffused_columns(graph, spaced, settings.steps)
    else:
        found, sample = (neighbour_columns(neighbours, rows, settings.steps) for rows in (queries, spaced))
    if not settings.include_diagonal:
        sample.scatter_(0, spaced.unsqueeze(0), 0.0)
    threshold = quantile_above_mean(sample, settings.quantile) / scale
    return AffinityGraph(threshold < found.T, threshold, exact=False)


_BACKENDS: dict[Backend, Callable[[Tensor, int, GraphSettings], AffinityGraph]] = {
    "dense": dense_affinity_graph,
    "split_fp16": split_fp16_affinity_graph,
    "sparse": sparse_affinity_graph,
    "sampled": sampled_affinity_graph,
}
