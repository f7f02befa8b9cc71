"""A classifier's losses, against closed forms."""

import math

import pytest
import torch

from promptcal.methods.parametric import labelled_cross_entropy, mean_entropy


def test_labelled_cross_entropy_is_the_mean_over_labelled_rows():
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 5.0, 0.0], [1.0, 1.0, 1.0]])
    expected = (-math.log(math.exp(2) / (math.exp(2) + 1 + math.e)) + math.log(3)) / 2
    assert labelled_cross_entropy(logits, torch.tensor([0, -1, 2])).item() == pytest.approx(expected, rel=1e-6)


def test_without_labels_it_is_zero_with_a_zero_gradient():
    logits = torch.randn(4, 3, requires_grad=True)
    loss = labelled_cross_entropy(logits, torch.full((4,), -1))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros(4, 3))


def test_mean_entropy_has_its_closed_forms():
    assert mean_entropy(torch.eye(5)).item() == pytest.approx(math.log(5))
    one_class = torch.zeros(6, 5)
    one_class[:, 2] = 1.0
    assert mean_entropy(one_class).item() == 0.0
    shares = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    assert mean_entropy(shares).item() == pytest.approx(-0.7 * math.log(0.7) - 0.3 * math.log(0.3))


def test_the_gradient_of_the_entropy_is_finite_where_a_class_is_unused():
    logits = torch.tensor([[0.0, 200.0], [0.0, 200.0]], requires_grad=True)
    mean_entropy(torch.softmax(logits, dim=1)).backward()
    assert torch.isfinite(logits.grad).all()
