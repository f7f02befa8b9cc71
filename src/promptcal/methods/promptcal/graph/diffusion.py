"""Diffused affinities at speed: the numbers of `graph.py`'s dense products, made with less work.

With A the membership matrix (row m: the nearest nodes of m and m itself), C = A^T A without its diagonal and
D its row sums, the consensus graph is G = D^-1 C. C is symmetric, its entries are small whole numbers, and
D = K x in-degree. Three ways to Q = G G G^T + I follow:

- `sparse_diffusion` (CPU): sparse products; a row of C has a few dozen entries, one of Q a few hundred.
- `split_fp16_diffusion` (CUDA): C and C C are whole numbers, so half-precision products of them are exact, and in
  Q = D^-1 C (D^-1 C C) D^-1 the one factor that is not whole is split into two halves (22 bits).
- `diffused_rows` (any device): only some rows of Q. A product with A is a sum over each node's neighbours (an
  embedding bag) and C X = A^T (A X) - in-degree X, so nothing of N x N is made.
"""

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.methods.promptcal.graph import kernels

_PAIRS_UP_TO = 48  # members of a neighbourhood, of which all pairs are listed; a product is cheaper beyond
SPLIT = 2048.0  # the second half's scale: what 11 bits of the first leave over, brought back into range


def with_self(neighbours: Tensor) -> Tensor:
    """Each node's neighbourhood: its nearest nodes, then itself."""
    own = torch.arange(len(neighbours), device=neighbours.device).unsqueeze(1)
    return torch.cat([neighbours, own], dim=1)


def in_degrees(neighbourhoods: Tensor) -> Tensor:
    """In how many neighbourhoods each node lies (its own included)."""
    ones = torch.ones(neighbourhoods.numel(), device=neighbourhoods.device)
    return torch.zeros(len(neighbourhoods), device=ones.device).index_add_(0, neighbourhoods.flatten(), ones)


def consensus_counts(neighbourhoods: Tensor) -> Tensor:
    """C, dense: in how many neighbourhoods both nodes lie; the diagonal is 0."""
    n, width = neighbourhoods.shape
    if width > _PAIRS_UP_TO:
        members = torch.zeros(n, n, dtype=torch.float16, device=neighbourhoods.device).scatter_(1, neighbourhoods, 1.0)
        return _wide_product(members.T, members).fill_diagonal_(0.0)
    pairs = (neighbourhoods.unsqueeze(2) * n + neighbourhoods.unsqueeze(1)).flatten()
    counts = torch.zeros(n * n, device=pairs.device)
    counts.index_add_(0, pairs, torch.ones(len(pairs), device=pairs.device))
    return counts.view(n, n).fill_diagonal_(0.0)


def split_fp16_diffusion(neighbours: Tensor) -> Tensor:
    """Q after one step, without +I: exact to float32's rounding while no count passes 2,048."""
    neighbourhoods = with_self(neighbours)
    inverse = 1.0 / (neighbours.shape[1] * in_degrees(neighbourhoods))
    counts = consensus_counts(neighbourhoods).half()
    high, low = kernels.split_scaled(_wide_product(counts, counts), inverse, SPLIT)
    return kernels.join_scaled(_wide_product(counts, high), _wide_product(counts, low), inverse, SPLIT)


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Half-precision factors, float32 result."""
    if a.device.type == "cuda":
        try:
            return torch.mm(a, b, out_dtype=torch.float32)
        except TypeError:  # PyTorch before 2.8
            pass
    return a.float() @ b.float()


def sparse_diffusion(neighbours: Tensor, steps: int, consensus: bool) -> scipy.sparse.csr_matrix:
    """Q by sparse products on the CPU, +I included where there is a step."""
    n = len(neighbours)
    members = neighbours if not consensus else with_self(neighbours)
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


def diffused_rows(neighbours: Tensor, rows: Tensor, steps: int, consensus: bool) -> Tensor:
    """Rows of Q (rows x nodes), +I included where there is a step.

    From the left, row by row: e Q_t = ((e G) Q_(t-1)) G^T + e, and e Q_0 = e G. Here a row stands as a column.
    """
    operators = _Operators(neighbours, consensus)
    start = torch.zeros(len(neighbours), len(rows), device=rows.device).scatter_(0, rows.unsqueeze(0), 1.0)
    left = [start]
    for _ in range(steps + 1):
        left.append(operators.transposed_graph(left[-1]))
    diffused = left.pop()
    for before in reversed(left[:-1]):
        diffused = operators.graph(diffused) + before
    return diffused.T.contiguous()


class _Operators:
    """G x and G^T x for columns x (nodes x anything)."""

    def __init__(self, neighbours: Tensor, consensus: bool) -> None:
        self.members = with_self(neighbours)
        self.consensus = consensus
        self.k = max(1, neighbours.shape[1])
        by_member, place = self.members.flatten().sort(stable=True)
        self.holders = place // self.members.shape[1]
        nodes = torch.arange(len(neighbours), device=neighbours.device)
        self.starts = torch.searchsorted(by_member, nodes)
        self.in_degrees = in_degrees(self.members).unsqueeze(1)

    def graph(self, x: Tensor) -> Tensor:
        if not self.consensus:
            return (self._gathered(x) - x) / self.k
        return self._counts(x) / (self.k * self.in_degrees)

    def transposed_graph(self, x: Tensor) -> Tensor:
        if not self.consensus:
            return (self._scattered(x) - x) / self.k
        return self._counts(x / (self.k * self.in_degrees))

    def _counts(self, x: Tensor) -> Tensor:
        """C x = A^T (A x) - in-degree x."""
        return self._scattered(self._gathered(x)) - self.in_degrees * x

    def _gathered(self, x: Tensor) -> Tensor:
        """A x: the sum over each node's neighbourhood."""
        return F.embedding_bag(self.members, x, mode="sum")

    def _scattered(self, x: Tensor) -> Tensor:
        """A^T x: the sum over the nodes in whose neighbourhood each node lies."""
        return F.embedding_bag(self.holders, x, self.starts, mode="sum")
