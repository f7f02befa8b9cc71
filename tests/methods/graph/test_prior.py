"""Sampling of negatives, and the correction of pairs by labels."""

import pytest
import torch

from promptcal.methods.promptcal.graph.pairs import apply_label_prior, sample_negatives


def random_positives(seed=0, shape=(8, 40), share=0.2):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("budget", [0, 1, 10, 40, 100])
@pytest.mark.parametrize("subtract", [True, False])
def test_each_query_gets_its_budget_of_non_positives(budget, subtract):
    positives = random_positives()
    negatives = sample_negatives(positives, budget, subtract_positives=subtract)
    assert not (positives & negatives).any()
    for p, n in zip(positives.sum(1).tolist(), negatives.sum(1).tolist(), strict=True):
        requested = max(0, budget - p) if subtract else budget
        assert n == min(requested, 40 - p)


def test_only_candidates_are_sampled():
    positives = random_positives()
    candidates = torch.zeros_like(positives)
    candidates[:, :7] = True
    negatives = sample_negatives(positives, 40, subtract_positives=False, candidates=candidates)
    assert torch.equal(negatives, candidates & ~positives)


def test_sampling_is_uniform_and_seeded():
    positives = torch.zeros(20000, 5, dtype=torch.bool)
    negatives = sample_negatives(positives, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(negatives.float().mean(0), torch.full((5,), 0.4), atol=0.02)
    again = sample_negatives(positives, 2, generator=torch.Generator().manual_seed(0))
    other = sample_negatives(positives, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(negatives, again)
    assert not torch.equal(negatives, other)


def test_empty_memory_has_no_negatives():
    assert sample_negatives(torch.zeros(3, 0, dtype=torch.bool), 10).shape == (3, 0)


def test_label_prior_equals_the_rule_for_each_pair():
    generator = torch.Generator().manual_seed(0)
    positives, negatives = random_positives(1), random_positives(2)
    negatives &= ~positives
    query_labels = torch.randint(-1, 3, (8,), generator=generator)
    key_labels = torch.randint(-1, 3, (40,), generator=generator)
    new_positives, new_negatives = apply_label_prior(positives, negatives, query_labels, key_labels)
    for i in range(8):
        for j in range(40):
            a, b = query_labels[i].item(), key_labels[j].item()
            if a < 0 or b < 0:
                expected = (positives[i, j].item(), negatives[i, j].item())
            else:
                expected = (a == b, a != b)
            assert (new_positives[i, j].item(), new_negatives[i, j].item()) == expected
