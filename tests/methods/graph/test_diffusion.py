"""The fast backends of the affinity graph against its dense definition, which test_graph.py compares with loops."""

import importlib
import itertools

import pytest
import torch
from torch.nn import functional as F

from promptcal.methods.promptcal.graph.affinity_graph import (
    GraphSettings,
    affinity_graph,
    dense_affinity_graph,
    sampled_affinity_graph,
    select_backend,
    sparse_affinity_graph,
)
from promptcal.methods.promptcal.graph.diffusion import (
    GROUP,
    HALF_SCALE,
    Memberships,
    consensus_graph,
    diffuse,
    diffused_columns,
    largest,
    nearest_neighbours,
    neighbour_columns,
    neighbour_graph,
    sparse_diffusion,
    split_fp16_diffusion,
)


def nodes(n, classes, dim=24, spread=0.6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    chosen = torch.randint(classes, (n,), generator=generator)
    return F.normalize(centres[chosen] + spread * torch.randn(n, dim, generator=generator), dim=1)


SIZES = [(200, 6, 7), (200, 2, 60), (60, 1, 3), (40, 5, 39), (5, 1, 10), (2, 1, 1)]


@pytest.mark.parametrize(("n", "classes", "k"), SIZES)
@pytest.mark.parametrize(("steps", "consensus"), list(itertools.product((0, 1, 2), (True, False))))
def test_sparse_products_and_selected_rows_equal_the_dense_graph(n, classes, k, steps, consensus):
    embeddings = nodes(n, classes)
    dense = diffuse((consensus_graph if consensus else neighbour_graph)(embeddings, k), steps)
    neighbours = nearest_neighbours(embeddings, k)
    sparse = torch.from_numpy(sparse_diffusion(neighbours, steps, consensus).toarray())
    torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=1e-7)
    selected = torch.randperm(n, generator=torch.Generator().manual_seed(1))[: max(2, n // 3)]
    if consensus:
        columns = diffused_columns(Memberships.of(neighbours), selected, steps)
    else:
        columns = neighbour_columns(neighbours, selected, steps)
    torch.testing.assert_close(columns.T, dense[selected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "classes", "k"), SIZES)
def test_columns_in_half_precision_keep_eleven_bits(n, classes, k):
    graph = Memberships.of(nearest_neighbours(nodes(n, classes), k))
    exact = diffused_columns(graph, torch.arange(n), 1)
    found = diffused_columns(graph, torch.arange(n), 1, torch.float16).float() / HALF_SCALE
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=2e-4 * float(exact.max()))


@pytest.mark.parametrize("k", [1, 5, 10])
def test_the_largest_entries_by_groups_are_those_of_topk(k):
    values = torch.randn(50, 40 * GROUP, generator=torch.Generator().manual_seed(k))
    one_group = torch.arange(k) * 40
    values[0, one_group] = values[0].max() + 1 + torch.arange(k)
    expected = values.topk(k, dim=1)
    found = largest(values, k)
    torch.testing.assert_close(values.gather(1, found).sort(descending=True).values, expected.values)
    assert torch.equal(found[0].sort().values, one_group)


@pytest.mark.parametrize(("n", "classes", "k"), SIZES)
def test_split_fp16_diffusion_is_as_precise_as_float32(n, classes, k):
    embeddings = nodes(n, classes)
    dense = diffuse(consensus_graph(embeddings.double(), k).double(), 1)
    found = split_fp16_diffusion(nearest_neighbours(embeddings, k))
    found.diagonal().add_(1.0)
    torch.testing.assert_close(found.double(), dense, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("diagonal", "consensus", "steps"), list(itertools.product((True, False), (True, False), (0, 1, 2)))
)
def test_fast_backends_find_the_positives_of_the_dense_graph(diagonal, consensus, steps):
    embeddings = nodes(300, 8)
    settings = GraphSettings(6, 0.7, steps, diagonal, consensus)
    dense = dense_affinity_graph(embeddings, 40, settings)
    fast = affinity_graph(embeddings[:40], embeddings[40:], settings)
    assert fast.exact
    torch.testing.assert_close(fast.threshold, dense.threshold, rtol=1e-5, atol=0.0)
    assert dense.positives.any() or (steps == 0 and not consensus)  # all entries of that graph are equal
    graph = (consensus_graph if consensus else neighbour_graph)(embeddings, 6)
    at_threshold = (diffuse(graph, steps)[:40] / dense.threshold - 1).abs() < 1e-5  # decided by rounding
    assert torch.equal(fast.positives | at_threshold, dense.positives | at_threshold)


@pytest.mark.parametrize(("classes", "spread"), [(100, 0.6), (20, 1.0)])
def test_threshold_from_sampled_rows_is_within_one_percent(monkeypatch, classes, spread):
    # the package's attribute of this name is the function
    module = importlib.import_module("promptcal.methods.promptcal.graph.affinity_graph")
    monkeypatch.setattr(module, "SAMPLED_ROWS", 1536)
    embeddings = nodes(3400, classes, dim=16, spread=spread)
    found = sampled_affinity_graph(embeddings, 128, GraphSettings(7, 0.8))
    exact = sparse_affinity_graph(embeddings, 128, GraphSettings(7, 0.8))
    assert (found.exact, exact.exact) == (False, True)
    assert float(found.threshold) == pytest.approx(float(exact.threshold), rel=0.01)
    differing = (found.positives != exact.positives).sum() / exact.positives.sum()
    assert differing < 0.02


def test_backend_depends_on_device_nodes_and_neighbours():
    cpu, cuda, mps = (torch.device(name) for name in ("cpu", "cuda", "mps"))
    few, many = GraphSettings(10, 0.5), GraphSettings(512, 0.5)
    assert [select_backend(n, few, cpu) for n in (4352, 20256)] == ["sparse", "sparse"]
    assert [select_backend(n, GraphSettings(2000, 0.5), cpu) for n in (4352, 20256)] == ["dense", "sampled"]
    assert [select_backend(n, many, cuda) for n in (4352, 8192, 8193)] == ["split_fp16", "split_fp16", "sampled"]
    assert (
        select_backend(4352, few._replace(steps=2), cuda)
        == select_backend(4352, few._replace(consensus=False), cuda)
        == "dense"
    )
    assert [select_backend(n, few, mps) for n in (8192, 8193)] == ["dense", "sampled"]


@pytest.mark.parametrize("max_exact_nodes", [8192, 10])
def test_identical_embeddings_and_a_memory_of_one(monkeypatch, max_exact_nodes):
    # the package's attribute of this name is the function
    module = importlib.import_module("promptcal.methods.promptcal.graph.affinity_graph")
    monkeypatch.setattr(module, "MAX_EXACT_NODES", max_exact_nodes)
    same = F.normalize(torch.ones(30, 8), dim=1)
    for memory in (same[8:], same[8:9]):
        graph = affinity_graph(same[:8], memory, GraphSettings(5, 0.5))
        assert torch.isfinite(graph.threshold)
        assert graph.positives.shape == (8, 8 + len(memory))
