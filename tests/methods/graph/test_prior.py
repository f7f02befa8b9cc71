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


def prior_by_sets(found, drawn, query_label, key_labels):
    """The rule of SemiPriori for one query, written with sets: positives and negatives after the correction."""
    same = {j for j, label in enumerate(key_labels) if query_label >= 0 and label == query_label}
    other = {j for j, label in enumerate(key_labels) if query_label >= 0 and label >= 0 and label != query_label}
    positives = (found - other) | same
    negatives = (drawn | (found & other)) - same
    return positives, negatives


@pytest.mark.parametrize("budget", [0, 5, 15, 40])
def test_label_prior_equals_the_rule_with_sampled_negatives(budget):
    positives = random_positives(1, shape=(16, 60))
    generator = torch.Generator().manual_seed(0)
    negatives = sample_negatives(positives, budget, generator=generator)
    query_labels = torch.randint(-1, 3, (16,), generator=generator)
    key_labels = torch.randint(-1, 3, (60,), generator=generator)
    new_positives, new_negatives = apply_label_prior(positives, negatives, query_labels, key_labels)
    for i in range(16):
        found, drawn = (set(mask[i].nonzero().flatten().tolist()) for mask in (positives, negatives))
        expected = prior_by_sets(found, drawn, query_labels[i].item(), key_labels.tolist())
        after = tuple(set(mask[i].nonzero().flatten().tolist()) for mask in (new_positives, new_negatives))
        assert after == expected


def test_labels_do_not_add_negatives_beyond_the_budget():
    """With half of the memory labelled, a labelled query keeps the budget: positives and negatives found or drawn."""
    generator = torch.Generator().manual_seed(0)
    positives = random_positives(3, shape=(32, 4096), share=0.005)
    negatives = sample_negatives(positives, 1024, generator=generator)
    key_labels = torch.randint(0, 100, (4096,), generator=generator)
    key_labels[::2] = -1
    query_labels = torch.randint(0, 100, (32,), generator=generator)
    after_positives, after_negatives = apply_label_prior(positives, negatives, query_labels, key_labels)
    assert (after_negatives.sum(dim=1) <= 1024).all()
    assert ((after_positives | after_negatives).sum(dim=1) <= 1024 + (after_positives & ~positives).sum(dim=1)).all()
