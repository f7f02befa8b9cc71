"""Graphs of embeddings (Eq. 4) and their diffusion (Eq. 5): dense definitions, and three faster computations.

Let A be the membership matrix (row m: the nearest neighbours of m and m itself), C = A^T A without its diagonal, and
D the row sums of C. The consensus graph is G = D^-1 C. C is symmetric, its entries are small integers, and
D = K x in-degree. Then Q = G G G^T + I can be computed by:

- `sparse_diffusion` (CPU): sparse products. A row of C has a few dozen entries, a row of Q a few hundred.
- `split_fp16_diffusion` (CUDA): C and C C hold integers, so half-precision products of them are exact. In
  Q = D^-1 C (D^-1 C C) D^-1 only D^-1 C C is not an integer matrix; it is split into two half-precision matrices
  (22 bits).
- `diffused_columns` (any device): only some rows of Q, stored as columns. A product with A is a sum over each node's
  neighbourhood, and C X = A^T (A X) - in-degree X, so no N x N matrix is needed.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.methods.promptcal.graph import kernels
from promptcal.methods.promptcal.graph.kernels import Lists, count_products

_MAX_WIDTH_FOR_PAIRS = 48  # larger neighbourhoods: a matrix product is faster than a list of all pairs
SPLIT = 2048.0  # scale of the low part: the high part holds 11 bits
HALF_SCALE = 4096.0  # of affinities in half precision: the largest is 2, and small ones keep all their bits
GROUP = 64  # columns whose maximum is taken first to find the largest entries of a row


def nearest_neighbours(embeddings: Tensor, k: int) -> Tensor:
    """Indices (N x min(k, N - 1)) of each node's nearest other nodes by cosine similarity."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    unit = F.normalize(embeddings.float(), dim=1)
    n, k = len(unit), min(k, max(0, len(unit) - 1))
    by_group = unit.device.type == "cuda" and n >= 4 * k * GROUP
    similarity = unit @ (F.pad(unit, (0, 0, 0, -n % GROUP)) if by_group else unit).T
    similarity[:, n:] = -torch.inf
    similarity.fill_diagonal_(-torch.inf)
    return largest(similarity, k) if by_group else similarity.topk(k, dim=1).indices


def largest(values: Tensor, k: int) -> Tensor:
    """Indices of the ``k`` largest entries of each row, which are in the k groups of columns with the largest maxima.

    Entries that are equal to the k-th largest one are exchangeable. On a GPU this is faster than `topk` for rows of
    thousands of entries. Their number must be a multiple of `GROUP`; a group holds every (columns / GROUP)-th column.
    """
    groups = values.view(len(values), GROUP, -1)
    best = groups.amax(dim=1).topk(k, dim=1).indices
    first = torch.arange(GROUP, device=values.device) * groups.shape[2]
    candidates = (best.unsqueeze(2) + first).flatten(1)
    return candidates.gather(1, values.gather(1, candidates).topk(k, dim=1).indices)


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


def diffuse(graph: Tensor, steps: int = 1) -> Tensor:
    """Tensor-product-graph diffusion: ``Q <- G Q G^T + I``, starting at ``Q = G``; 0 ``steps`` return G."""
    diffused = graph
    for _ in range(steps):
        diffused = graph @ diffused @ graph.T
        diffused.diagonal().add_(1.0)
    return diffused


def add_self(neighbours: Tensor) -> Tensor:
    """Each node's neighbourhood: its nearest neighbours, then the node itself."""
    own = torch.arange(len(neighbours), device=neighbours.device).unsqueeze(1)
    return torch.cat([neighbours, own], dim=1)


def in_degrees(neighbourhoods: Tensor) -> Tensor:
    """Number of neighbourhoods that contain each node, including its own."""
    ones = torch.ones(neighbourhoods.numel(), device=neighbourhoods.device)
    return torch.zeros(len(neighbourhoods), device=ones.device).index_add_(0, neighbourhoods.flatten(), ones)


def consensus_counts(neighbourhoods: Tensor) -> Tensor:
    """C as a dense matrix: the number of neighbourhoods that contain both nodes; the diagonal is 0."""
    n, width = neighbourhoods.shape
    if width > _MAX_WIDTH_FOR_PAIRS:
        members = torch.zeros(n, n, dtype=torch.float16, device=neighbourhoods.device).scatter_(1, neighbourhoods, 1.0)
        return _matmul_fp32(members.T, members).fill_diagonal_(0.0)
    pairs = (neighbourhoods.unsqueeze(2) * n + neighbourhoods.unsqueeze(1)).flatten()
    counts = torch.zeros(n * n, device=pairs.device)
    counts.index_add_(0, pairs, torch.ones(len(pairs), device=pairs.device))
    return counts.view(n, n).fill_diagonal_(0.0)


def split_fp16_diffusion(neighbours: Tensor) -> Tensor:
    """Q after one step, without +I. Exact up to float32 rounding while no count exceeds 2,048."""
    neighbourhoods = add_self(neighbours)
    inverse = 1.0 / (neighbours.shape[1] * in_degrees(neighbourhoods))
    counts = consensus_counts(neighbourhoods).half()
    high, low = kernels.split_scaled(_matmul_fp32(counts, counts), inverse, SPLIT)
    return kernels.join_scaled(_matmul_fp32(counts, high), _matmul_fp32(counts, low), inverse, SPLIT)


def _matmul_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Product of two half-precision matrices, accumulated and returned in float32."""
    if a.device.type == "cuda":
        try:
            return torch.mm(a, b, out_dtype=torch.float32)
        except TypeError:  # PyTorch before 2.8
            pass
    return a.float() @ b.float()


def sparse_diffusion(neighbours: Tensor, steps: int, consensus: bool) -> scipy.sparse.csr_matrix:
    """Q by sparse products on the CPU; with at least one step, +I is included."""
    n = len(neighbours)
    members = neighbours if not consensus else add_self(neighbours)
    width = members.shape[1]
    entries = np.ones(n * width, dtype=np.float32)
    graph = scipy.sparse.csr_matrix((entries, members.numpy().ravel(), np.arange(n + 1) * width), (n, n))
    if consensus:
        graph = (graph.T @ graph).tocsr()
        graph.setdiag(0.0)
        graph.eliminate_zeros()
    rows = np.asarray(graph.sum(axis=1)).ravel()
    graph = scipy.sparse.diags((1.0 / np.maximum(rows, 1.0)).astype(np.float32)) @ graph
    transposed, diffused, identity = graph.T.tocsr(), graph, scipy.sparse.identity(n, np.float32, "csr")
    for _ in range(steps):
        diffused = graph @ diffused @ transposed + identity
    return diffused.tocsr()


class Memberships(NamedTuple):
    """Who is in which neighbourhood.

    Attributes:
        k: Nearest neighbours of each node.
        members: The neighbourhood of each node: its nearest neighbours and itself.
        holders: The nodes whose neighbourhood contains a node.
        degrees: Number of holders of each node.
    """

    k: int
    members: Lists
    holders: Lists
    degrees: Tensor

    @classmethod
    def of(cls, neighbours: Tensor) -> "Memberships":
        members = add_self(neighbours)
        n, width = members.shape
        sorted_members, order = members.flatten().sort(stable=True)
        every_start = torch.arange(n + 1, device=members.device)
        holders = Lists(order // width, torch.searchsorted(sorted_members, every_start))
        return cls(neighbours.shape[1], Lists(members.flatten(), every_start * width), holders, in_degrees(members))


def diffused_columns(graph: Memberships, rows: Tensor, steps: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The given ``rows`` of Q of the consensus graph, as columns (nodes x rows).

    With at least one step, +I is included. For a unit row vector e: e Q_t = ((e G) Q_(t-1)) G^T + e, and e Q_0 = e G.
    In half precision, all values are multiplied by `HALF_SCALE`.
    """
    k, members, holders, degrees = graph
    ones, inverse = torch.ones_like(degrees), 1.0 / (max(1, k) * degrees)
    identity = torch.zeros(len(degrees), len(rows), device=rows.device, dtype=dtype)
    identity.scatter_(0, rows.unsqueeze(0), 1.0 if dtype == torch.float32 else HALF_SCALE)
    left = [identity]  # e G, e G G, ...: G^T e = C D^-1 e
    for _ in range(steps + 1):
        left.append(count_products(left[-1], members, holders, degrees, inverse, ones))
    diffused = left.pop()
    for earlier in reversed(left[:-1]):  # G x = D^-1 C x
        diffused = count_products(diffused, members, holders, degrees, ones, inverse).add_(earlier)
    return diffused.clamp_(min=0.0)  # differences of rounded sums


def neighbour_columns(neighbours: Tensor, rows: Tensor, steps: int) -> Tensor:
    """As `diffused_columns`, of the graph of nearest neighbours without consensus."""
    n, k = neighbours.shape
    sorted_neighbours, order = neighbours.flatten().sort(stable=True)
    starts = torch.searchsorted(sorted_neighbours, torch.arange(n + 1, device=rows.device))
    left = [torch.zeros(n, len(rows), device=rows.device).scatter_(0, rows.unsqueeze(0), 1.0)]
    for _ in range(steps + 1):
        sums = F.embedding_bag(order // k, left[-1], starts, mode="sum", include_last_offset=True)
        left.append(sums / max(1, k))
    diffused = left.pop()
    for earlier in reversed(left[:-1]):
        diffused = F.embedding_bag(neighbours, diffused, mode="sum") / max(1, k) + earlier
    return diffused
