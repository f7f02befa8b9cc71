"""The mining rules of the ablations against loops."""

import pytest
import torch

from promptcal.methods.promptcal.graph.pairs import neighbour_positives, ranking_positives


def nodes_of(n, dim, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def cosine(a, b):
    return (a @ b / (a.norm() * b.norm())).item()


@pytest.mark.parametrize("k", [1, 3, 7])
def test_neighbour_positives_are_the_k_nearest_other_nodes(k):
    queries, memory = nodes_of(4, 6), nodes_of(9, 6, seed=1)
    nodes = torch.cat([queries, memory])
    found = neighbour_positives(queries, memory, k)
    assert found.shape == (4, 13)
    for i in range(4):
        others = sorted((j for j in range(13) if j != i), key=lambda j, i=i: -cosine(nodes[i], nodes[j]))
        assert set(found[i].nonzero().flatten().tolist()) == set(others[:k])


def test_more_neighbours_than_nodes_selects_all_other_nodes():
    found = neighbour_positives(nodes_of(2, 3), nodes_of(3, 3, seed=1), 99)
    assert found.tolist() == [[False, True, True, True, True], [True, False, True, True, True]]


@pytest.mark.parametrize("top", [1, 2, 3])
def test_ranking_positives_share_the_set_of_largest_features(top):
    queries, memory = nodes_of(8, 4), nodes_of(40, 4, seed=1)
    nodes = torch.cat([queries, memory]).tolist()
    found = ranking_positives(queries, memory, top)
    largest = [set(sorted(range(4), key=lambda d, node=node: -node[d])[:top]) for node in nodes]
    expected = [[j != i and largest[i] == largest[j] for j in range(48)] for i in range(8)]
    assert found.tolist() == expected
    assert 0 < found.sum() < found.numel() - 8


def test_ranking_ignores_the_order_of_the_largest_features():
    query, memory = torch.tensor([[5.0, 4.0, 0.0]]), torch.tensor([[4.0, 5.0, 0.0], [5.0, 0.0, 4.0], [9.0, 8.0, -7.0]])
    assert ranking_positives(query, memory, 2).tolist() == [[False, True, False, True]]
    assert ranking_positives(query, memory, 9).tolist() == [[False, True, True, True]]  # at most the number of features
