"""ORCA: margin, partners, pairwise term and uncertainty against loops."""

import math

import pytest
import torch
from torch.nn import functional as F

from promptcal.methods.orca import margin_cross_entropy, pairwise_loss, positive_partners

LABELS = [0, -1, 1, 0, -1, 1, -1]


def test_the_margin_equals_the_formula():
    cosines = torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    losses = []
    for row, y in zip(cosines.tolist(), LABELS, strict=True):
        if y >= 0:
            right = math.exp(10 * (row[y] + 0.3))
            losses.append(-math.log(right / (right + sum(math.exp(10 * c) for k, c in enumerate(row) if k != y))))
    found = margin_cross_entropy(cosines, torch.tensor(LABELS), 0.3, 10.0)
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_uncertainty_holds_the_supervised_loss_back():
    cosines = torch.rand(7, 3, generator=torch.Generator().manual_seed(1))
    losses = [margin_cross_entropy(cosines, torch.tensor(LABELS), m, 10.0).item() for m in (0.0, 0.2, 0.5)]
    assert losses == sorted(losses, reverse=True)


def test_partners_are_of_the_class_or_the_nearest():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, 4, generator=generator)
    images = torch.arange(7)
    drawn = set()
    for seed in range(20):
        partners = positive_partners(features, torch.tensor(LABELS), images, torch.Generator().manual_seed(seed))
        for i, y in enumerate(LABELS):
            others = [j for j in range(7) if j != i]
            if y >= 0:
                assert LABELS[partners[i]] == y
                assert partners[i] != i
            else:
                assert partners[i] == max(
                    others, key=lambda j, i=i: F.cosine_similarity(features[i], features[j], dim=0).item()
                )
        drawn.add(tuple(partners.tolist()))
    assert len(drawn) == 1  # two images a class leave no choice


def test_partners_of_a_larger_class_are_drawn_evenly():
    labels = torch.zeros(5, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(5, 5)
    for _ in range(2000):
        partners = positive_partners(torch.ones(5, 2), labels, torch.arange(5), generator)
        counts[torch.arange(5), partners] += 1
    assert counts.diagonal().sum() == 0
    off_diagonal = counts[~torch.eye(5, dtype=torch.bool)]
    assert off_diagonal.min() > 400  # 500 expected, standard deviation 19
    assert off_diagonal.max() < 600


def test_a_copy_of_an_image_is_no_partner_and_a_lone_one_is_its_own():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    copies = torch.tensor([4, 4, 9])
    generator = torch.Generator().manual_seed(0)
    assert positive_partners(features, torch.full((3,), -1), copies, generator).tolist() == [2, 2, 0]
    assert positive_partners(features, torch.tensor([0, 0, 1]), copies, generator).tolist() == [0, 1, 2]


def test_the_pairwise_loss_equals_the_loop():
    p = torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    partners = torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), dim=1)
    products = [
        sum(a * b for a, b in zip(x, y, strict=True)) for x, y in zip(p.tolist(), partners.tolist(), strict=True)
    ]
    expected = -sum(math.log(product) for product in products) / 4
    assert pairwise_loss(p, partners).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_equals_its_parts(stage_of, batch_of):
    stage, batch = stage_of("orca", "orca.pair_weight=0.5", "orca.entropy_weight=2"), batch_of(LABELS)
    features, cosines = (t.detach() for t in stage.network(batch.views))
    p = torch.softmax(10 * cosines, dim=1)
    unlabelled = [i for i, y in enumerate(LABELS) if y < 0]
    uncertainty = min(0.5, sum(1 - p[i].max().item() for i in unlabelled) / len(unlabelled))
    generator = torch.Generator().manual_seed(0)
    partners = positive_partners(features[:7], batch.labels[:7], batch.indices[:7], generator)
    pairs = -sum(math.log((p[i] @ p[7 + partners[i]]).item()) for i in range(7)) / 7
    mean = p[:7].mean(dim=0)
    entropy = -sum(m * math.log(m) for m in mean.tolist())
    supervised = margin_cross_entropy(cosines[:7], batch.labels[:7], uncertainty, 10.0).item()
    found = stage.step(batch, 0.0)
    assert found.loss.item() == pytest.approx(supervised + 0.5 * pairs - 2 * entropy, rel=1e-4)
    assert found.logs["uncertainty"].item() == pytest.approx(uncertainty, rel=1e-5)


def test_uncertainty_is_that_of_the_epoch_before(stage_of, batch_of):
    stage = stage_of("orca", "orca.max_margin=1")
    batches = [batch_of(LABELS, seed) for seed in range(4)]

    def of(batch):
        _, cosines = stage.network(batch.views[:7])
        return [1 - p.max().item() for p, y in zip(torch.softmax(10 * cosines, dim=1), LABELS, strict=True) if y < 0]

    def mean(values):
        return sum(values) / len(values)

    found = [stage.step(b, e).logs["uncertainty"].item() for b, e in zip(batches, (0.0, 0.5, 1.0, 1.5), strict=True)]
    so_far = [of(batches[0]), of(batches[0]) + of(batches[1])]
    assert found == pytest.approx([mean(so_far[0]), mean(so_far[1]), mean(so_far[1]), mean(so_far[1])], rel=1e-5)
    resumed = stage_of("orca", "orca.max_margin=1")
    resumed.load_state_dict(stage.state_dict())
    assert resumed.step(batches[0], 2.0).logs["uncertainty"].item() == pytest.approx(
        mean(of(batches[2]) + of(batches[3])), rel=1e-5
    )
