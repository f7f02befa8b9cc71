"""SemiAG's graph against brute force written from the equations of method.md."""

import math

import pytest
import torch
from torch.nn import functional as F

from promptcal.methods.promptcal.graph import (
    affinity_threshold,
    consensus_graph,
    diffuse,
    nearest_neighbours,
    pseudo_positives,
)


def random_points(n, seed=0):
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))


def clustered_points(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 8, generator=generator)
    return centres[torch.randint(4, (n,), generator=generator)] + 0.2 * torch.randn(n, 8, generator=generator)


def duplicate_points(n, seed=0):
    return random_points((n + 2) // 3, seed).repeat(3, 1)[:n]


def identical_points(n, seed=0):
    return torch.ones(n, 8)


POINTS = [random_points, clustered_points, duplicate_points, identical_points]
SIZES = [(1, 1), (2, 1), (3, 5), (12, 1), (12, 3), (30, 5), (30, 40)]


def neighbours_are_nearest(points, neighbours, k):
    """Each row lists k other nodes, none of them farther than a node left out (ties may fall either way)."""
    unit = F.normalize(points, dim=1)
    similarity = (unit @ unit.T).tolist()
    n = len(points)
    for i in range(n):
        chosen = neighbours[i].tolist()
        others = [j for j in range(n) if j != i and j not in chosen]
        assert len(set(chosen)) == len(chosen) == min(k, n - 1)
        assert i not in chosen
        worst = min((similarity[i][j] for j in chosen), default=math.inf)
        assert all(similarity[i][j] <= worst + 1e-6 for j in others)


def consensus_by_loops(neighbours):
    """Eq. 4, then row normalisation, over the given neighbourhoods."""
    n = len(neighbours)
    hoods = [set(row) | {i} for i, row in enumerate(neighbours)]
    counts = [[0 if i == j else sum(1 for h in hoods if i in h and j in h) for j in range(n)] for i in range(n)]
    return [[c / sum(row) if sum(row) else 0.0 for c in row] for row in counts]


def diffusion_by_loops(g, steps):
    """Eq. 5: Q(t+1) = G Q(t) G^T + I."""
    n = len(g)
    q = g
    for _ in range(steps):
        gq = [[sum(g[i][a] * q[a][j] for a in range(n)) for j in range(n)] for i in range(n)]
        q = [[sum(gq[i][b] * g[j][b] for b in range(n)) + (i == j) for j in range(n)] for i in range(n)]
    return q


def threshold_by_loops(q, quantile, include_diagonal):
    entries = [v for i, row in enumerate(q) for j, v in enumerate(row) if include_diagonal or i != j]
    non_zero = [v for v in entries if v != 0]
    mean = sum(non_zero) / len(non_zero) if non_zero else 0.0
    above = sorted(v for v in entries if v > mean)
    if not above:
        return mean
    position = quantile * (len(above) - 1)
    low, high = above[math.floor(position)], above[math.ceil(position)]
    return low + (high - low) * (position - math.floor(position))


@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_consensus_and_diffusion_equal_the_loops(points, n, k):
    embeddings = points(n)
    neighbours = nearest_neighbours(embeddings, k)
    neighbours_are_nearest(embeddings, neighbours, k)
    expected = consensus_by_loops(neighbours.tolist())
    graph = consensus_graph(embeddings, k)
    assert torch.allclose(graph, torch.tensor(expected).view(n, n), atol=1e-6)
    for steps in (0, 1, 2):
        diffused = torch.tensor(diffusion_by_loops(expected, steps)).view(n, n)
        assert torch.allclose(diffuse(graph, steps), diffused, atol=1e-5)


def test_diffusion_leaves_its_input_alone():
    graph = consensus_graph(random_points(10), 3)
    before = graph.clone()
    diffuse(graph, 2)
    assert torch.equal(graph, before)


@pytest.mark.parametrize("include_diagonal", [True, False])
@pytest.mark.parametrize("quantile", [0.0, 0.37, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize(("n", "k"), [(2, 1), (12, 3), (30, 5)])
def test_threshold_equals_the_loops(points, n, k, quantile, include_diagonal):
    diffused = diffuse(consensus_graph(points(n), k)).double()
    expected = threshold_by_loops(diffused.tolist(), quantile, include_diagonal)
    found = affinity_threshold(diffused, quantile, include_diagonal).item()
    assert found == pytest.approx(expected, rel=1e-6)


def test_threshold_of_an_empty_or_zero_graph_lets_nothing_pass():
    for graph in (torch.zeros(0, 0), torch.zeros(4, 4)):
        threshold = affinity_threshold(graph, 0.5)
        assert not (graph > threshold).any()


def test_threshold_has_no_size_limit():
    # torch.quantile refuses more than 16 million entries
    values = torch.linspace(0, 1, 4200 * 4200).view(4200, 4200)
    assert affinity_threshold(values, 0.5).item() == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize("quantile", [-0.1, 1.1])
def test_a_quantile_outside_its_range_is_refused(quantile):
    with pytest.raises(ValueError, match="quantile"):
        affinity_threshold(torch.eye(3), quantile)


def test_k_below_one_is_refused():
    with pytest.raises(ValueError, match="k must be"):
        consensus_graph(random_points(4), 0)


@pytest.mark.parametrize("include_diagonal", [True, False])
@pytest.mark.parametrize("points", [random_points, clustered_points, duplicate_points])
@pytest.mark.parametrize(("n_queries", "n_memory", "k", "quantile"), [(4, 20, 4, 0.5), (6, 30, 1, 0.8), (2, 3, 9, 0.5)])
def test_pseudo_positives_equal_the_whole_pipeline_by_loops(points, n_queries, n_memory, k, quantile, include_diagonal):
    nodes = points(n_queries + n_memory, seed=3)
    g = consensus_by_loops(nearest_neighbours(nodes, k).tolist())
    q = diffusion_by_loops(g, 1)
    threshold = threshold_by_loops(q, quantile, include_diagonal)
    found = pseudo_positives(nodes[:n_queries], nodes[n_queries:], k, quantile, include_diagonal=include_diagonal)
    assert found.shape == (n_queries, n_memory)
    assert found.dtype == torch.bool
    for i in range(n_queries):
        for j in range(n_memory):
            margin = q[i][n_queries + j] - threshold
            if abs(margin) > 1e-6:  # entries at the threshold itself are a matter of rounding
                assert found[i, j].item() == (margin > 0)


def tight_clusters():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat(40)
    centres = 5 * torch.randn(5, 16, generator=generator)
    return centres[labels] + torch.randn(200, 16, generator=generator), labels


def test_pseudo_positives_find_clusters():
    nodes, labels = tight_clusters()
    found = pseudo_positives(nodes[:20], nodes[20:], k=10, quantile=0.5, include_diagonal=False)
    right = labels[:20].unsqueeze(1) == labels[20:].unsqueeze(0)
    assert found.sum() >= 20 * 5
    assert (found & right).sum() == found.sum()


def test_the_diagonal_starves_tight_clusters():
    # method.md: with +I in the statistics the threshold can pass 1 and no positive is left
    nodes, _ = tight_clusters()
    assert affinity_threshold(diffuse(consensus_graph(nodes, 10)), 0.5) > 1
    assert not pseudo_positives(nodes[:20], nodes[20:], k=10, quantile=0.5).any()


def test_empty_memory_gives_an_empty_mask():
    assert pseudo_positives(random_points(4), torch.zeros(0, 8), 3, 0.5).shape == (4, 0)


def test_scale_of_the_embeddings_does_not_matter():
    nodes = clustered_points(30)
    scaled = nodes * torch.rand(30, 1).add(0.5)
    assert torch.equal(pseudo_positives(nodes[:6], nodes[6:], 4, 0.5), pseudo_positives(scaled[:6], scaled[6:], 4, 0.5))
