"""UNO+: Sinkhorn's marginals, the swapped targets, the heads, and the whole loss."""

import math

import pytest
import torch
from torch.nn import functional as F

from promptcal.methods.uno import sinkhorn, swapped_targets

LABELS = [0, -1, 1, -1, -1]


def similarities(rows, columns, seed=0):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_sinkhorn_has_the_marginals_it_is_for():
    plan = sinkhorn(similarities(40, 8), 0.05, 500)
    assert torch.allclose(plan.sum(dim=1), torch.ones(40), atol=1e-5)
    assert torch.allclose(plan.sum(dim=0), torch.full((8,), 5.0), atol=1e-3)
    assert torch.allclose(sinkhorn(similarities(40, 8), 0.05, 3).sum(dim=1), torch.ones(40), atol=1e-5)


@pytest.mark.parametrize("iterations", [1, 3])
def test_sinkhorn_equals_scaling_columns_and_rows_in_turn(iterations):
    given = similarities(6, 4)
    plan = [[math.exp(s / 0.05) for s in row] for row in given.tolist()]
    for _ in range(iterations):
        sums = [sum(row[k] for row in plan) for k in range(4)]
        plan = [[row[k] / sums[k] for k in range(4)] for row in plan]
        plan = [[value / sum(row) for value in row] for row in plan]
    assert torch.allclose(sinkhorn(given, 0.05, iterations), torch.tensor(plan), atol=1e-5)


def test_sinkhorn_survives_what_would_overflow():
    assert torch.isfinite(sinkhorn(1000 * similarities(5, 3), 0.01, 3)).all()


def test_targets_are_labels_and_the_other_views_assignments():
    cosines = similarities(10, 4)
    targets = swapped_targets(cosines, torch.tensor(LABELS * 2), 0.05, 3)
    unlabelled = [1, 3, 4]
    first, second = sinkhorn(cosines[unlabelled], 0.05, 3), sinkhorn(cosines[[6, 8, 9]], 0.05, 3)
    for view in (0, 5):
        assert torch.equal(targets[view + 0], F.one_hot(torch.tensor(0), 4).float())
        assert torch.equal(targets[view + 2], F.one_hot(torch.tensor(1), 4).float())
    for place, i in enumerate(unlabelled):
        assert torch.equal(targets[i], second[place])
        assert torch.equal(targets[5 + i], first[place])


def test_a_batch_without_unlabelled_images_has_labels_only():
    targets = swapped_targets(similarities(4, 3), torch.tensor([0, 1, 0, 1]), 0.05, 3)
    assert targets.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]


def test_the_loss_is_the_mean_over_heads_and_over_clustering_heads(stage_of, batch_of):
    stage, batch = stage_of("uno", "uno.heads=3", "uno.overclustering=2"), batch_of(LABELS)
    heads, overclustering = stage.network(batch.views)
    assert [h.shape[1] for h in heads] == [5] * 3
    assert [h.shape[1] for h in overclustering] == [2 + 3 * 2] * 3
    losses = []
    for cosines in (*heads, *overclustering):
        targets = swapped_targets(cosines.detach(), batch.labels, 0.05, 3).tolist()
        total = 0.0
        for target, row in zip(targets, cosines.tolist(), strict=True):
            normaliser = sum(math.exp(c / 0.1) for c in row)
            total -= sum(t * math.log(math.exp(c / 0.1) / normaliser) for t, c in zip(target, row, strict=True))
        losses.append(total / 10)
    found = stage.step(batch, 0.0)
    assert found.loss.item() == pytest.approx((sum(losses[:3]) / 3 + sum(losses[3:]) / 3) / 2, rel=1e-4)


def test_the_head_with_the_lowest_loss_is_asked(stage_of, batch_of):
    stage, batch = stage_of("uno", "uno.heads=3"), batch_of(LABELS)
    heads, _ = stage.network(batch.views)
    losses = [stage._cross_entropy(cosines, batch.labels).item() for cosines in heads]
    stage.step(batch, 0.0)
    stage.after_update()
    assert stage.network.head_losses.tolist() == pytest.approx([0.01 * loss for loss in losses], rel=1e-5)
    best = losses.index(min(losses))
    features = F.normalize(stage.network.vit(batch.views).cls, dim=1)
    assert torch.allclose(stage.network.classify(features), heads[best] / 0.1, atol=1e-4)


def test_which_head_is_best_travels_with_the_weights(stage_of):
    network = stage_of("uno").network
    assert "head_losses" in network.trained_parameters()
    assert network.trained_parameters()["head_losses"].grad is None
