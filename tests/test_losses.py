"""The contrastive loss against loops written from Eq. 1, and the two terms made of it."""

import math

import pytest
import torch

from promptcal.config.schema import LossConfig
from promptcal.methods.losses import contrastive_loss, semi_supervised_terms


def loss_by_loops(similarity, positives, anchors, temperature):
    """Eq. 1, query by query."""
    losses, n_keys = [], len(similarity[0])
    for q in range(len(similarity)):
        own = [k for k in range(n_keys) if positives[q][k]]
        total = sum(math.exp(similarity[q][k] / temperature) for k in range(n_keys) if anchors[q][k])
        terms = [math.log(math.exp(similarity[q][k] / temperature) / total) for k in own]
        losses.append(-sum(terms) / len(terms) if terms else 0.0)
    return losses


@pytest.mark.parametrize("temperature", [0.07, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loops(temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(7, 11, generator=generator) * 2 - 1
    positives = torch.rand(7, 11, generator=generator) < 0.2
    anchors = positives | (torch.rand(7, 11, generator=generator) < 0.5)
    positives[3] = False
    expected = loss_by_loops(similarity.tolist(), positives.tolist(), anchors.tolist(), temperature)
    found = contrastive_loss(similarity, positives, anchors, temperature, reduction="none")
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert contrastive_loss(similarity, positives, anchors, temperature).item() == pytest.approx(
        sum(expected) / 7, rel=1e-4
    )
    assert contrastive_loss(similarity, positives, anchors, temperature, reduction="sum").item() == pytest.approx(
        sum(expected), rel=1e-4
    )


def test_queries_without_positives_or_anchors_give_zero_loss_and_gradient():
    similarity = torch.randn(3, 5, requires_grad=True)
    nothing = torch.zeros(3, 5, dtype=torch.bool)
    loss = contrastive_loss(similarity, nothing, nothing, 0.07)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(similarity.grad, torch.zeros(3, 5))


def test_one_query_without_positives_leaves_the_others_gradient_finite():
    similarity = torch.randn(2, 4, requires_grad=True)
    positives = torch.tensor([[True, False, False, False], [False] * 4])
    anchors = torch.tensor([[True, True, False, False], [False] * 4])
    contrastive_loss(similarity, positives, anchors, 0.07).backward()
    assert torch.isfinite(similarity.grad).all()
    assert similarity.grad[0].abs().sum() > 0
    assert similarity.grad[1].abs().sum() == 0


def test_no_keys_at_all_is_zero():
    empty = torch.zeros(3, 0, dtype=torch.bool)
    assert contrastive_loss(torch.zeros(3, 0), empty, empty, 1.0).item() == 0.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_extreme_logits_stay_finite(scale):
    similarity = (torch.randn(4, 6) * scale).requires_grad_()
    positives = torch.eye(4, 6, dtype=torch.bool)
    loss = contrastive_loss(similarity, positives, torch.ones_like(positives), 0.07)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(similarity.grad).all()


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction"):
        contrastive_loss(torch.zeros(1, 1), torch.ones(1, 1).bool(), torch.ones(1, 1).bool(), 1.0, reduction="max")


def terms_by_loops(similarity, labels, self_temperature, supervised_temperature):
    """Both terms as method.md words them, on views ordered [first views, second views]."""
    n = len(labels)
    self_loss = 0.0
    for i in range(n):
        total = sum(math.exp(similarity[i][j] / self_temperature) for j in range(n) if j != i)
        other = (i + n // 2) % n
        self_loss -= math.log(math.exp(similarity[i][other] / self_temperature) / total) / n
    labelled = [i for i in range(n) if labels[i] >= 0]
    supervised = 0.0
    for i in labelled:
        total = sum(math.exp(similarity[i][j] / supervised_temperature) for j in labelled if j != i)
        same = [j for j in labelled if j != i and labels[j] == labels[i]]
        shares = [math.log(math.exp(similarity[i][j] / supervised_temperature) / total) for j in same]
        supervised -= sum(shares) / len(shares) / len(labelled)
    return self_loss, supervised


@pytest.mark.parametrize("labels", [[0, 1, -1, 0], [2, 2, 2, 2], [-1, 0, -1, -1]])
def test_semi_supervised_terms_equal_the_loops(labels):
    labels = labels * 2
    features = torch.nn.functional.normalize(torch.randn(8, 5, generator=torch.Generator().manual_seed(1)), dim=1)
    keys = torch.nn.functional.normalize(torch.randn(8, 5, generator=torch.Generator().manual_seed(2)), dim=1)
    for similarity in (features @ features.T, features @ keys.T):  # warm-up, and student against teacher
        expected = terms_by_loops(similarity.tolist(), labels, 1.0, 0.07)
        found = semi_supervised_terms(similarity, torch.tensor(labels), LossConfig())
        assert [t.item() for t in found] == pytest.approx(expected, rel=1e-4)


def test_without_labels_the_supervised_term_is_zero():
    similarity = torch.randn(6, 6, requires_grad=True)
    terms = semi_supervised_terms(similarity, torch.full((6,), -1), LossConfig())
    assert terms.supervised.item() == 0.0
    terms.supervised.backward()
    assert torch.isfinite(similarity.grad).all()
