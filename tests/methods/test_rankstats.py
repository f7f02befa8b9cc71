"""RankStats+: pairs by ranking, the pairwise term, the ramp and the whole loss against loops."""

import math

import pytest
import torch
from training_step import one_step, softmax

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
    assert ramp_up(5.0, 0, 50) == pytest.approx(5 * math.exp(-5))
    assert ramp_up(5.0, 25, 50) == pytest.approx(5 * math.exp(-1.25))
    assert ramp_up(5.0, 50, 50) == ramp_up(5.0, 80, 50) == ramp_up(5.0, 0, 0) == 5.0


def test_the_weight_of_the_consistency_is_the_same_in_all_steps_of_an_epoch(stage_of, batch_of):
    stage, batch = stage_of("rankstats", "rankstats.consistency=400", "rankstats.ramp_epochs=10"), batch_of(LABELS)
    found = [stage.step(batch, epochs_done) for epochs_done in (3.0, 3.75, 4.0)]
    logs = found[0].logs
    for result, epoch in zip(found, (3, 3, 4), strict=True):
        weight = 400 * math.exp(-5 * (1 - epoch / 10) ** 2)
        expected = logs["supervised"] + logs["pairwise"] + 2 * weight * logs["consistency"]
        assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_step_equals_the_equations(tmp_path):
    """Pairs are of all images, labelled or not."""
    step = one_step(tmp_path, "rankstats", "rankstats.top=1", "rankstats.consistency=400")
    network, n = step.before, len(step.batch.labels) // 2
    labels = step.batch.labels[:n].tolist()
    embeddings = network.vit(step.batch.views).cls
    z = embeddings / embeddings.square().sum(dim=1, keepdim=True).sqrt()
    p = [softmax(list(network.classifier.weight @ (4 * row) + network.classifier.bias)) for row in z]  # 4 = sqrt(16)
    supervised = [-p[i][y].log() for i, y in enumerate(labels) if y >= 0]
    top = [max(range(16), key=lambda d, row=row: row[d]) for row in z[:n].tolist()]
    pairs, n_same = [], 0
    for i in range(n):
        for j in range(n):
            together = sum(a * b for a, b in zip(p[i], p[n + j], strict=True))
            pairs.append(-(together if top[i] == top[j] else 1 - together).log())
            n_same += top[i] == top[j]
    assert n < n_same < n * n  # some pairs besides each image with itself
    consistency = sum((p[i][k] - p[n + i][k]) ** 2 for i in range(n) for k in range(5)) / (5 * n)
    weight = 400 * math.exp(-5)  # at the start of the ramp
    loss = sum(supervised) / len(supervised) + sum(pairs) / n**2 + weight * 2 * consistency
    step.check(loss, lr=0.1)


def test_the_classifier_does_not_mind_how_long_a_feature_is(stage_of, batch_of):
    network = stage_of("rankstats").network
    features, logits = network(batch_of(LABELS).views)
    assert torch.allclose(network.classify(features), logits)
    assert torch.allclose(features.norm(dim=1), torch.ones(10), atol=1e-5)
