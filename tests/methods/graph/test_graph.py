"""The affinity graph against loops written from the paper's equations."""

import math

import pytest
import torch
from torch.nn import functional as F

from promptcal.methods.promptcal.graph.affinity_graph import GraphSettings, affinity_graph, affinity_threshold
from promptcal.methods.promptcal.graph.diffusion import consensus_graph, diffuse, nearest_neighbours


def memory_positives(queries, memory, k, quantile, include_diagonal=True):
    settings = GraphSettings(k, quantile, include_diagonal=include_diagonal)
    return affinity_graph(queries, memory, settings).positives[:, len(queries) :]


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


def check_nearest(points, neighbours, k):
    """Each row lists k other nodes, none of them farther away than an omitted node; ties may be in any order."""
    unit = F.normalize(points, dim=1)
    similarity = (unit @ unit.T).tolist()
    n = len(points)
    for i in range(n):
        chosen = neighbours[i].tolist()
        others = [j for j in range(n) if j != i and j not in chosen]
        assert len(set(chosen)) == len(chosen) == min(k, n - 1)
        assert i not in chosen
        farthest = min((similarity[i][j] for j in chosen), default=math.inf)
        assert all(similarity[i][j] <= farthest + 1e-6 for j in others)


def consensus_by_loops(neighbours):
    """Eq. 4 and row normalisation for given neighbours."""
    n = len(neighbours)
    neighbourhoods = [set(row) | {i} for i, row in enumerate(neighbours)]
    counts = [
        [0 if i == j else sum(1 for h in neighbourhoods if i in h and j in h) for j in range(n)] for i in range(n)
    ]
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
    check_nearest(embeddings, neighbours, k)
    expected = consensus_by_loops(neighbours.tolist())
    graph = consensus_graph(embeddings, k)
    assert torch.allclose(graph, torch.tensor(expected).view(n, n), atol=1e-6)
    for steps in (0, 1, 2):
        diffused = torch.tensor(diffusion_by_loops(expected, steps)).view(n, n)
        assert torch.allclose(diffuse(graph, steps), diffused, atol=1e-5)


def test_diffusion_does_not_change_its_input():
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


@pytest.mark.parametrize("graph", [torch.zeros(0, 0), torch.zeros(4, 4)])
def test_nothing_passes_the_threshold_of_an_empty_or_zero_graph(graph):
    assert not (graph > affinity_threshold(graph, 0.5)).any()


def test_threshold_has_no_size_limit():
    # torch.quantile refuses more than 16 million entries
    values = torch.linspace(0, 1, 4200 * 4200).view(4200, 4200)
    assert affinity_threshold(values, 0.5).item() == pytest.approx(0.75, abs=1e-4)


def test_values_out_of_range_are_errors():
    for quantile in (-0.1, 1.1):
        with pytest.raises(ValueError, match="quantile"):
            affinity_threshold(torch.eye(3), quantile)
    with pytest.raises(ValueError, match="k must be"):
        consensus_graph(random_points(4), 0)


@pytest.mark.parametrize("include_diagonal", [True, False])
@pytest.mark.parametrize("points", [random_points, clustered_points, duplicate_points])
@pytest.mark.parametrize(("n_queries", "n_memory", "k", "quantile"), [(4, 20, 4, 0.5), (6, 30, 1, 0.8), (2, 3, 9, 0.5)])
def test_positives_equal_all_steps_by_loops(points, n_queries, n_memory, k, quantile, include_diagonal):
    nodes = points(n_queries + n_memory, seed=3)
    g = consensus_by_loops(nearest_neighbours(nodes, k).tolist())
    q = diffusion_by_loops(g, 1)
    threshold = threshold_by_loops(q, quantile, include_diagonal)
    found = memory_positives(nodes[:n_queries], nodes[n_queries:], k, quantile, include_diagonal=include_diagonal)
    assert found.shape == (n_queries, n_memory)
    assert found.dtype == torch.bool
    for i in range(n_queries):
        for j in range(n_memory):
            margin = q[i][n_queries + j] - threshold
            if abs(margin) > 1e-6:  # entries at the threshold are decided by rounding
                assert found[i, j].item() == (margin > 0)


def tight_clusters():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat(40)
    centres = 5 * torch.randn(5, 16, generator=generator)
    return centres[labels] + torch.randn(200, 16, generator=generator), labels


def test_positives_are_of_the_querys_cluster():
    nodes, labels = tight_clusters()
    found = memory_positives(nodes[:20], nodes[20:], k=10, quantile=0.5, include_diagonal=False)
    same_class = labels[:20].unsqueeze(1) == labels[20:].unsqueeze(0)
    assert found.sum() >= 20 * 5
    assert (found & same_class).sum() == found.sum()


def test_the_diagonal_starves_tight_clusters():
    # with +I in the statistics the threshold can exceed 1, and no positive remains
    nodes, _ = tight_clusters()
    assert affinity_threshold(diffuse(consensus_graph(nodes, 10)), 0.5) > 1
    assert not memory_positives(nodes[:20], nodes[20:], k=10, quantile=0.5).any()


def test_empty_memory_gives_an_empty_mask():
    assert memory_positives(random_points(4), torch.zeros(0, 8), 3, 0.5).shape == (4, 0)


def test_scale_of_the_embeddings_does_not_matter():
    nodes = clustered_points(30)
    scaled = nodes * torch.rand(30, 1).add(0.5)
    assert torch.equal(memory_positives(nodes[:6], nodes[6:], 4, 0.5), memory_positives(scaled[:6], scaled[6:], 4, 0.5))
