"""The fast ways to the affinity graph against its dense definition, which test_graph.py holds against loops."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from promptcal.methods.promptcal.graph import (
    affinity_graph,
    consensus_graph,
    diffuse,
    nearest_neighbours,
    neighbour_graph,
)
from promptcal.methods.promptcal.graph import affinity_graph as graph_module
from promptcal.methods.promptcal.graph.affinity_graph import (
    GraphSettings,
    dense_affinity_graph,
    sampled_affinity_graph,
    select_backend,
    sparse_affinity_graph,
)
from promptcal.methods.promptcal.graph.diffusion import diffused_rows, sparse_diffusion, split_fp16_diffusion


def nodes(n, classes, dim=24, spread=0.6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    chosen = torch.randint(classes, (n,), generator=generator)
    return F.normalize(centres[chosen] + spread * torch.randn(n, dim, generator=generator), dim=1)


SIZES = [(200, 6, 7), (200, 2, 60), (60, 1, 3), (40, 5, 39), (5, 1, 10), (2, 1, 1)]


@pytest.mark.parametrize(("n", "classes", "k"), SIZES)
@pytest.mark.parametrize(("steps", "consensus"), list(itertools.product((0, 1, 2), (True, False))))
def test_sparse_products_and_single_rows_are_those_of_the_dense_graph(n, classes, k, steps, consensus):
    embeddings = nodes(n, classes)
    dense = diffuse((consensus_graph if consensus else neighbour_graph)(embeddings, k), steps)
    neighbours = nearest_neighbours(embeddings, k)
    sparse = torch.from_numpy(sparse_diffusion(neighbours, steps, consensus).toarray())
    torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=1e-7)
    wanted = torch.randperm(n, generator=torch.Generator().manual_seed(1))[: max(2, n // 3)]
    rows = diffused_rows(neighbours, wanted, steps, consensus)
    torch.testing.assert_close(rows, dense[wanted], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "classes", "k"), SIZES)
def test_two_halves_keep_the_precision_of_float32(n, classes, k):
    embeddings = nodes(n, classes)
    dense = diffuse(consensus_graph(embeddings.double(), k).double(), 1)
    halves = split_fp16_diffusion(nearest_neighbours(embeddings, k))
    halves.diagonal().add_(1.0)
    torch.testing.assert_close(halves.double(), dense, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("diagonal", "consensus", "steps"), list(itertools.product((True, False), (True, False), (0, 1, 2)))
)
def test_the_fast_graph_decides_as_the_dense_one(diagonal, consensus, steps):
    embeddings = nodes(300, 8)
    settings = GraphSettings(6, 0.7, steps, diagonal, consensus)
    dense = dense_affinity_graph(embeddings, 40, settings)
    fast = affinity_graph(embeddings[:40], embeddings[40:], settings)
    assert fast.exact
    torch.testing.assert_close(fast.threshold, dense.threshold, rtol=1e-5, atol=0.0)
    assert dense.positives.any() or (steps == 0 and not consensus)  # whose entries are all the same
    graph = (consensus_graph if consensus else neighbour_graph)(embeddings, 6)
    beside = (diffuse(graph, steps)[:40] / dense.threshold - 1).abs() < 1e-5  # rounding may decide these either way
    assert torch.equal(fast.positives | beside, dense.positives | beside)


@pytest.mark.parametrize(("classes", "spread"), [(100, 0.6), (20, 1.0)])
def test_beyond_8192_nodes_the_threshold_of_sampled_rows_is_within_a_percent(classes, spread):
    embeddings = nodes(9000, classes, dim=16, spread=spread)
    found = sampled_affinity_graph(embeddings, 128, GraphSettings(7, 0.8))
    exact = sparse_affinity_graph(embeddings, 128, GraphSettings(7, 0.8))
    assert (found.exact, exact.exact) == (False, True)
    assert float(found.threshold) == pytest.approx(float(exact.threshold), rel=0.01)
    differing = (found.positives != exact.positives).sum() / exact.positives.sum()
    assert differing < 0.02


def test_the_way_is_chosen_by_device_nodes_and_neighbours():
    cpu, cuda, mps = (torch.device(name) for name in ("cpu", "cuda", "mps"))
    few, many = GraphSettings(10, 0.5), GraphSettings(512, 0.5)
    assert [select_backend(n, few, cpu) for n in (4352, 20256)] == ["sparse", "sparse"]
    assert [select_backend(n, GraphSettings(2000, 0.5), cpu) for n in (4352, 20256)] == ["dense", "sampled"]
    assert [select_backend(n, many, cuda) for n in (4352, 8192, 8193)] == ["halves", "halves", "sampled"]
    assert (
        select_backend(4352, few._replace(steps=2), cuda)
        == select_backend(4352, few._replace(consensus=False), cuda)
        == "dense"
    )
    assert [select_backend(n, few, mps) for n in (8192, 8193)] == ["dense", "sampled"]
    assert select_backend(4352, few._replace(rule="row"), cuda) == "rows"


@pytest.mark.parametrize("rule", ["global", "row", "class-share", "mean-share"])
@pytest.mark.parametrize("limit", [8192, 10])
def test_identical_images_and_a_memory_of_one_are_no_trouble(monkeypatch, limit, rule):
    monkeypatch.setattr(graph_module, "EXACT_UP_TO", limit)
    same = F.normalize(torch.ones(30, 8), dim=1)
    for memory in (same[8:], same[8:9]):
        graph = affinity_graph(same[:8], memory, GraphSettings(5, 0.5)._replace(rule=rule))
        assert torch.isfinite(graph.threshold)
        assert graph.positives.shape == (8, 8 + len(memory))


def brute_force_thresholds(embeddings, n_queries, settings):
    """Queries' rows of the dense definition, and each one's own threshold: one row at a time, quantiles by NumPy."""
    graph = (consensus_graph if settings.consensus else neighbour_graph)(embeddings, settings.k)
    rows = diffuse(graph.double(), settings.steps)[:n_queries].numpy()
    thresholds = np.zeros((n_queries, 1))
    for i, row in enumerate(rows):
        row[i] = 0.0
        entries = row[row > 0]
        if settings.rule == "row":
            above = entries[entries > entries.mean()]
            thresholds[i] = np.quantile(above, settings.quantile) if len(above) else entries.mean()
        else:
            thresholds[i] = np.sort(row)[::-1][round(settings.share * len(row)) - 1]
    return torch.from_numpy(rows), torch.from_numpy(thresholds)


@pytest.mark.parametrize(
    ("rule", "quantile", "top", "steps", "consensus"),
    [
        ("row", 0.5, 1, 1, True),
        ("row", 0.8, 1, 1, True),
        ("row", 0, 1, 2, True),
        ("class-share", 0, 5, 1, True),
        ("class-share", 0, 290, 1, True),
        ("class-share", 0, 5, 1, False),
    ],
)
def test_thresholds_by_query_against_a_loop(rule, quantile, top, steps, consensus):
    embeddings = nodes(300, 8)
    settings = GraphSettings(6, quantile, steps, True, consensus, rule, top / 300)
    found = affinity_graph(embeddings[:40], embeddings[40:], settings)
    rows, thresholds = brute_force_thresholds(embeddings, 40, settings)
    expected = rows > thresholds if rule == "row" else (rows >= thresholds) & (rows > 0)
    beside = (rows / thresholds - 1).abs() < 1e-5  # rounding may decide these either way
    assert torch.equal(found.positives | beside, expected | beside)
    assert float(found.threshold) == pytest.approx(float(thresholds.mean()), rel=1e-5)
    assert (expected | beside).any(dim=1).all()  # the point of such thresholds: nobody starves
    assert not consensus or beside.sum() <= 0.5 * expected.sum()  # enough is left to compare


@pytest.mark.parametrize(
    ("top", "steps", "consensus"), [(0.3, 1, True), (5, 1, True), (5, 2, True), (5, 1, False), (260, 1, True)]
)
def test_a_mean_share_against_all_affinities_in_a_row(top, steps, consensus):
    """So many positives in the memory as asked for, the strongest, whosever they are."""
    embeddings = nodes(300, 8)
    embeddings[:60] = F.normalize(embeddings[:1] + 0.01 * embeddings[:60], dim=1)  # a dense place
    settings = GraphSettings(6, 0.0, steps, True, consensus, "mean-share", top / 260)
    found = affinity_graph(embeddings[:40], embeddings[40:], settings)
    graph = (consensus_graph if consensus else neighbour_graph)(embeddings, 6)
    rows = diffuse(graph.double(), steps)[:40]
    wanted, linked = round(40 * top), (rows > 0).fill_diagonal_(False)
    strengths = sorted((float(rows[i, j]) for i in range(40) for j in range(40, 300)), reverse=True)
    threshold = strengths[wanted - 1]
    assert float(found.threshold) == pytest.approx(threshold, rel=1e-5, abs=1e-12)
    if wanted > linked[:, 40:].sum():  # more than there are: all of them, and nobody else
        assert torch.equal(found.positives, linked)
        return
    beside = (rows - threshold).abs() <= 1e-5 * threshold  # rounding may decide these either way
    assert torch.equal(found.positives | beside, (linked & (rows >= threshold)) | beside)
    counts = found.positives[:, 40:].sum(dim=1)
    assert wanted <= counts.sum() <= wanted + beside.sum()
    assert counts.max() > 2 * top  # some have many, others few or none


def test_a_mean_share_does_not_count_the_batch():
    """The same image twice in the batch is the strongest pair of all, and no reason to find less in the memory."""
    embeddings = nodes(300, 8)
    twice = torch.cat([embeddings[:20], embeddings[:20], embeddings[20:]])
    settings = GraphSettings(6, 0.0, rule="mean-share", share=2 / 280)
    found = affinity_graph(twice[:40], twice[40:], settings).positives
    assert found[:20, 20:40].diagonal().sum() > 10
    assert found[:, 40:].sum() >= 80
