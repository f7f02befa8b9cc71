"""The affinity graph of SemiAG, step by step: neighbours, consensus (Eq. 4), diffusion (Eq. 5), threshold."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.methods.promptcal.graph.diffusion import diffused_rows, sparse_diffusion, split_fp16_diffusion
from promptcal.methods.promptcal.graph.kernels import quantile_above_mean


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
    if not include_diagonal:
        diffused = diffused.clone().fill_diagonal_(0.0)  # counts as absent
    return quantile_above_mean(diffused, quantile)


class GraphSettings(NamedTuple):
    """What the graph is made by: neighbours, threshold quantile, diffusion steps, the diagonal in the threshold or
    not, and consensus or the plain neighbour graph in its place.

    ``rule`` is whence the threshold comes: "global", one of all affinities, as published; "row", one of each query's
    own; "class-share", that which leaves each query its strongest, the ``share`` of all nodes; "mean-share", the one to
    leave the ``share`` of all pairs of a query and the memory (without the batch, where its image's other view would
    always be first), however they fall to the queries.
    """

    k: int
    quantile: float
    steps: int = 1
    include_diagonal: bool = True
    consensus: bool = True
    rule: Literal["global", "row", "class-share", "mean-share"] = "global"
    share: float = 0.0


class AffinityGraph(NamedTuple):
    """What SemiAG found: pseudo positives (query x node) and the threshold that made them.

    ``exact``: whether the threshold is what its rule says, or of evenly spaced rows. Where each query has its own,
    ``threshold`` is their mean.
    """

    positives: Tensor
    threshold: Tensor
    exact: bool = True


EXACT_UP_TO = 8192  # nodes, where a matrix of all pairs is made
SAMPLED_ROWS = 4096  # beyond that many nodes the threshold is taken from as many rows


Way = Literal["sparse", "halves", "dense", "sampled", "rows"]


def select_backend(n: int, settings: GraphSettings, device: torch.device) -> Way:
    """The fastest way to the graph of ``n`` nodes: three exact ones, and for many nodes one of sampled rows; only the
    queries' rows where the rule asks for no others."""
    if settings.rule != "global":
        return "rows"
    if device.type == "cpu" and 16 * settings.k < n:  # with more neighbours than that, rows are hardly sparse
        return "sparse"
    if n > EXACT_UP_TO:
        return "sampled"
    if device.type == "cuda" and settings.consensus and settings.steps == 1 and n > 1:
        return "halves"
    return "dense"


def affinity_graph(queries: Tensor, memory: Tensor, settings: GraphSettings) -> AffinityGraph:
    """Steps 1 to 5 of SemiAG on the nodes [queries; memory]: which nodes are positives of which query.

    `dense_affinity_graph` says what is computed; this does it in the fastest way for the device and the number of
    nodes.
    """
    nodes = torch.cat([queries, memory])
    make = _WAYS[select_backend(len(nodes), settings, nodes.device)]
    return make(nodes, len(queries), settings)


def dense_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    """The definition, step by step."""
    graph = (consensus_graph if settings.consensus else neighbour_graph)(nodes, settings.k)
    return _thresholded(diffuse(graph, settings.steps), n_queries, settings)


def split_fp16_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    diffused = split_fp16_diffusion(nearest_neighbours(nodes, settings.k))
    diffused.diagonal().add_(1.0)
    return _thresholded(diffused, n_queries, settings)


def _thresholded(diffused: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
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
    """Of the diffused affinities only the queries' rows, and evenly spaced ones for the threshold."""
    neighbours = nearest_neighbours(nodes, settings.k)
    spaced = torch.linspace(0, len(nodes) - 1, SAMPLED_ROWS, device=nodes.device).round().long()
    wanted = torch.cat([torch.arange(n_queries, device=nodes.device), spaced])
    rows = diffused_rows(neighbours, wanted, settings.steps, settings.consensus).clamp_(min=0.0)
    sample = rows[n_queries:]
    if not settings.include_diagonal:
        sample = sample.scatter(1, spaced.unsqueeze(1), 0.0)
    threshold = quantile_above_mean(sample, settings.quantile)
    return AffinityGraph(rows[:n_queries] > threshold, threshold, exact=False)


def rows_affinity_graph(nodes: Tensor, n_queries: int, settings: GraphSettings) -> AffinityGraph:
    """Thresholds from the queries' rows; a query's affinity to itself counts for nothing, one of 0 is no positive."""
    queries = torch.arange(n_queries, device=nodes.device)
    neighbours = nearest_neighbours(nodes, settings.k)
    rows = diffused_rows(neighbours, queries, settings.steps, settings.consensus).clamp_(min=0.0)
    rows.fill_diagonal_(0.0)
    if settings.rule == "row":
        thresholds = row_thresholds(rows, settings.quantile)
        return AffinityGraph(rows > thresholds, thresholds.mean())
    if settings.rule == "mean-share":
        of_memory = rows[:, n_queries:].flatten()
        threshold = of_memory.topk(max(1, round(settings.share * len(of_memory))), sorted=False).values.min()
        return AffinityGraph((rows >= threshold) & (rows > 0), threshold)
    thresholds = rows.topk(max(1, round(settings.share * rows.shape[1])), dim=1).values[:, -1:]
    return AffinityGraph((rows >= thresholds) & (rows > 0), thresholds.mean())


def row_thresholds(rows: Tensor, quantile: float) -> Tensor:
    """Of each row (a column of them): the ``quantile`` of the entries above the mean of its non-zero ones."""
    means = rows.sum(dim=1, keepdim=True) / (rows > 0).sum(dim=1, keepdim=True).clamp(min=1)
    above = rows > means
    ascending = torch.where(above, rows, torch.inf).sort(dim=1).values
    place = quantile * (above.sum(dim=1, keepdim=True) - 1).clamp(min=0).float()
    low, high = (ascending.gather(1, p.long()) for p in (place.floor(), place.ceil()))
    thresholds = torch.where(place.frac() > 0, low + (high - low) * place.frac(), low)
    return torch.where(above.any(dim=1, keepdim=True), thresholds, means)


_WAYS = {
    "dense": dense_affinity_graph,
    "halves": split_fp16_affinity_graph,
    "sparse": sparse_affinity_graph,
    "sampled": sampled_affinity_graph,
    "rows": rows_affinity_graph,
}


def pseudo_positives(
    queries: Tensor,
    memory: Tensor,
    k: int,
    quantile: float,
    steps: int = 1,
    include_diagonal: bool = True,
) -> Tensor:
    """Boolean queries x memory: the memory entries whose diffused affinity to a query passes the threshold."""
    graph = affinity_graph(queries, memory, GraphSettings(k, quantile, steps, include_diagonal))
    return graph.positives[:, len(queries) :]
