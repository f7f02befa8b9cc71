"""RankStats+: pairs by ranking, the pairwise term, the ramp and the whole loss against loops."""

import math

import pytest
import torch

from promptcal.methods.rankstats import pairwise_cross_entropy, ramp_up, same_ranking

LABELS = [0, -1, 1, -1, -1]


def test_pairs_are_those_with_equal_sets_of_top_dimensions():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 6, generator=generator)
    found = same_ranking(features, 3)
    tops = [set(sorted(range(6), key=lambda d, row=row: -row[d])[:3]) for row in features.tolist()]
    expected = [[a == b for b in tops] for a in tops]
    assert found.tolist() == expected
    assert 60 < found.sum() < 1000  # some pairs, not all


def test_of_nothing_there_are_no_pairs():
    assert same_ranking(torch.zeros(0, 8), 5).shape == (0, 0)
    assert pairwise_cross_entropy(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 0, dtype=torch.bool)) == 0


def pairwise_by_loops(p, q, same):
    total = 0.0
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            together = sum(x * y for x, y in zip(a, b, strict=True))
            total -= math.log(together) if same[i][j] else math.log(1 - together)
    return total / (len(p) * len(q))


def test_the_pairwise_term_equals_the_loop():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.softmax(torch.randn(5, 4, generator=generator), dim=1) for _ in range(2))
    same = torch.rand(5, 5, generator=generator) < 0.4
    expected = pairwise_by_loops(p.tolist(), q.tolist(), same.tolist())
    assert pairwise_cross_entropy(p, q, same).item() == pytest.approx(expected, rel=1e-5)


def test_certainty_gives_no_infinite_loss():
    p = torch.eye(2)
    assert torch.isfinite(pairwise_cross_entropy(p, p, torch.tensor([[False, True], [True, False]])))


def test_the_ramp_rises_to_its_weight():
    assert ramp_up(5.0, 0.0, 50) == pytest.approx(5 * math.exp(-5))
    assert ramp_up(5.0, 25.0, 50) == pytest.approx(5 * math.exp(-1.25))
    assert ramp_up(5.0, 50.0, 50) == ramp_up(5.0, 80.0, 50) == ramp_up(5.0, 0.0, 0) == 5.0


def test_the_loss_equals_its_parts(stage_of, batch_of):
    stage, batch = stage_of("rankstats", "rankstats.top=2", "rankstats.ramp_epochs=4"), batch_of(LABELS)
    features, logits = (t.detach() for t in stage.network(batch.views))
    p = torch.softmax(logits, dim=1)
    unlabelled = [1, 3, 4]
    same = same_ranking(features[unlabelled], 2).tolist()
    pairs = pairwise_by_loops(p[unlabelled].tolist(), p[[6, 8, 9]].tolist(), same)
    labelled = [(row, y) for row, y in zip(p.tolist(), LABELS * 2, strict=True) if y >= 0]
    supervised = -sum(math.log(row[y]) for row, y in labelled) / len(labelled)
    consistency = ((p[:5] - p[5:]) ** 2).mean().item()
    expected = supervised + pairs + 5 * math.exp(-5 * 0.5**2) * consistency
    assert stage.step(batch, 2.0).loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_classifier_does_not_mind_how_long_a_feature_is(stage_of, batch_of):
    network = stage_of("rankstats").network
    features, logits = network(batch_of(LABELS).views)
    assert torch.allclose(network.classify(features), logits)
    assert torch.allclose(features.norm(dim=1), torch.ones(10), atol=1e-5)
