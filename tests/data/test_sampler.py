"""Which images are in the batches: half labelled, drawn with replacement, or every image once."""

import pytest
import torch
from scipy.stats import chisquare

from promptcal.data import BalancedSampler, NaturalSampler, build_sampler


def mask(n, n_labelled):
    labelled = torch.zeros(n, dtype=torch.bool)
    labelled[torch.randperm(n, generator=torch.Generator().manual_seed(1))[:n_labelled]] = True
    return labelled


@pytest.mark.parametrize(("n", "batch", "steps"), [(100, 10, 10), (109, 10, 10), (10, 10, 1), (3, 128, 1)])
def test_an_epoch_is_the_full_batches_of_n_draws_and_at_least_one(n, batch, steps):
    sampler = BalancedSampler(mask(n, 2), batch)
    epoch = sampler.epoch(0)
    assert sampler.steps_per_epoch == steps
    assert (epoch.shape, epoch.dtype) == ((steps, batch), torch.int64)
    assert int(epoch.min()) >= 0
    assert int(epoch.max()) < n


@pytest.mark.parametrize("n_labelled", [3, 50, 250, 297])
def test_half_of_the_draws_are_labelled_and_each_side_is_uniform(n_labelled):
    labelled = mask(300, n_labelled)
    sampler = BalancedSampler(labelled, 100)
    draws = torch.cat([sampler.epoch(seed).flatten() for seed in range(200)])
    assert abs(labelled[draws].double().mean() - 0.5) < 4 * 0.5 / len(draws) ** 0.5
    counts = torch.bincount(draws, minlength=300)
    for side in (labelled, ~labelled):
        assert chisquare(counts[side].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("n_labelled", [0, 40])
def test_where_one_side_is_empty_all_images_are_equally_likely(n_labelled):
    sampler = BalancedSampler(mask(40, n_labelled), 40)
    counts = torch.bincount(torch.cat([sampler.epoch(s).flatten() for s in range(500)]), minlength=40)
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_an_epoch_depends_on_the_seed_only_and_is_drawn_with_replacement():
    assert len(BalancedSampler(mask(200, 100), 200).epoch(0).unique()) < 160  # expected share 1 - 1/e: 126 of 200
    sampler = BalancedSampler(mask(300, 50), 30)
    first = sampler.epoch(7)
    torch.rand(3)
    assert torch.equal(first, sampler.epoch(7))
    assert torch.equal(first, BalancedSampler(mask(300, 50), 30).epoch(7))
    assert not torch.equal(first, sampler.epoch(8))


def test_images_outside_of_the_mask_are_never_drawn():
    labelled = mask(60, 12)
    drawn = torch.arange(60) % 5 != 4
    drawn[0] = drawn[59] = False
    sampler, alone = BalancedSampler(labelled, 8, drawn), BalancedSampler(labelled[drawn], 8)
    positions = drawn.nonzero().flatten()
    assert sampler.steps_per_epoch == alone.steps_per_epoch
    for seed in range(50):
        assert torch.equal(sampler.epoch(seed), positions[alone.epoch(seed)])


def test_natural_sampling_has_every_image_once_an_epoch():
    drawn = torch.arange(67) % 5 != 4  # 54 images
    sampler = NaturalSampler(drawn, 6)
    first, second = sampler.epoch(0), sampler.epoch(1)
    assert first.shape == (9, 6)
    assert first.flatten().sort().values.tolist() == drawn.nonzero().flatten().tolist()
    assert not torch.equal(first, second)
    assert torch.equal(first, NaturalSampler(drawn, 6).epoch(0))
    incomplete = NaturalSampler(drawn, 10).epoch(0)
    assert incomplete.shape == (5, 10)
    assert len(incomplete.unique()) == 50


def test_natural_sampling_leaves_out_any_image_of_the_last_batch():
    sampler, left_out = NaturalSampler(torch.ones(23, dtype=torch.bool), 10), torch.zeros(23)
    for seed in range(2000):
        left_out += torch.bincount(sampler.epoch(seed).flatten(), minlength=23) == 0
    assert chisquare(left_out.numpy()).pvalue > 1e-3


def test_a_natural_batch_larger_than_the_set_repeats_every_image_equally_often():
    counts = torch.bincount(NaturalSampler(torch.ones(5, dtype=torch.bool), 16).epoch(3).flatten(), minlength=5)
    assert sorted(counts.tolist()) == [3, 3, 3, 3, 4]


def test_the_setting_names_the_sampler():
    labelled, drawn = mask(60, 12), torch.arange(60) < 48
    balanced, natural = (build_sampler(kind, labelled, 8, drawn).epoch(5) for kind in ("balanced", "natural"))
    assert torch.equal(balanced, BalancedSampler(labelled, 8, drawn).epoch(5))
    assert torch.equal(natural, NaturalSampler(drawn, 8).epoch(5))
    assert len(build_sampler("natural", labelled, 60).epoch(0).unique()) == 60
