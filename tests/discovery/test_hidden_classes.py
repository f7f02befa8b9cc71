"""The known share against closed forms, and the interval on Gaussian mixtures with hidden classes."""

import math

import numpy as np
import pytest
import torch

from promptcal.discovery import class_count
from promptcal.discovery.class_count import ClassCount, count_classes
from promptcal.discovery.hidden_classes import (
    SHARE,
    CountProblem,
    Estimates,
    _calibrate,
    _calibrate_share,
    hidden_problems,
    peak,
    shrunk_mean,
)
from promptcal.discovery.known_share import (
    ImageCounts,
    KnownShare,
    can_measure,
    describe_images,
    measure_known_share,
    whitened,
)
from promptcal.errors import ConfigError


def mixture(classes, known, each=30, dim=24, spread=0.7, seed=0):
    """Gaussians around unit centres, L2-normalised; half of the points of ``known`` random ones are labelled."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    truth = np.repeat(np.arange(classes), each)
    points = centres[truth] + spread / math.sqrt(dim) * generator.normal(size=(len(truth), dim))
    features = torch.nn.functional.normalize(torch.from_numpy(points).float(), dim=1)
    labels = np.full(len(truth), -1)
    for number in generator.permutation(classes)[:known]:
        labels[generator.permutation(np.flatnonzero(truth == number))[: each // 2]] = number
    return features, truth, labels


def share_of(as_known, as_hidden, unlabelled, images, sizes=None):
    k = len(as_known)
    sizes = np.full(k, 10.0) if sizes is None else np.asarray(sizes, dtype=np.float64)
    return KnownShare(np.asarray(as_known), np.asarray(as_hidden), unlabelled, sizes, ImageCounts(*images), 5)


def test_share_and_number_are_those_of_the_formulas():
    """m_U = 0.4 x 0.9 + 0.6 x 0.1, with four fifths of the classes known: half of the unlabelled images are known."""
    found = share_of([0.9] * 5, [0.1] * 5, 0.42, (100, 300))
    assert found.share == pytest.approx(0.5)
    assert found.n_classes == pytest.approx(5 * 400 / (100 + 0.5 * 300))
    weighted = share_of([0.9, 0.6, 0.9], [0.1, 0.4, 0.1], 0.5, (10, 10), sizes=[1, 2, 1])
    assert weighted.share == pytest.approx(5 / 4 * (0.5 - 0.25) / (0.75 - 0.25))


def test_without_spread_every_draw_is_the_estimate():
    found = share_of([0.9] * 5, [0.1] * 5, 0.42, (100, 300))
    np.testing.assert_allclose(found.draw(50, 0), found.n_classes, rtol=1e-9)


def test_draws_spread_like_the_number_of_random_sizes_that_fill_a_sum():
    """Sizes 1 and 3: of n new classes with mean size 2 and variance 1, the number that fills a given sum varies by
    about sqrt(n / 4), and the mean size of k known ones adds n / sqrt(4 k)."""
    k, n_new = 100, 100
    sizes = np.tile([1.0, 3.0], k // 2)
    found = share_of([1.0] * k, [0.0] * k, 0.8 / 3, (100, 300), sizes)  # the known share is a third
    assert found.n_classes == pytest.approx(k + n_new)
    draws = found.draw(2000, 0)
    assert draws.mean() == pytest.approx(k + n_new, rel=0.02)
    assert draws.std() == pytest.approx(math.sqrt(n_new / 4 + n_new**2 / (4 * k)), rel=0.1)


def test_whitened_classes_have_equal_spread_in_all_directions():
    generator = np.random.default_rng(0)
    labels = np.arange(4000) % 4
    noise = generator.normal(size=(4000, 3)) * [0.5, 0.05, 0.01]
    points = torch.from_numpy(np.eye(4, 3)[labels] * 3 + noise).float()
    lengths = whitened(points, labels)
    np.testing.assert_allclose(lengths.norm(dim=1), 1, rtol=1e-5)
    within = np.stack([points[labels == c].numpy() - points[labels == c].numpy().mean(axis=0) for c in range(4)])
    covariance = within.reshape(-1, 3).T @ within.reshape(-1, 3) / (4000 - 4)
    shrunk = 0.9 * covariance + 0.1 * np.trace(covariance) / 3 * np.eye(3)
    means = np.stack([points[labels == c].numpy().mean(axis=0) for c in range(4)])
    centred = points.numpy() - means.mean(axis=0)
    values, vectors = np.linalg.eigh(shrunk)
    expected = centred @ vectors / np.sqrt(values)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(lengths.numpy()), np.abs(expected), atol=2e-3)  # axes may be mirrored


def test_an_image_is_described_by_class_means_and_the_labels_of_its_neighbours():
    features, _, labels = mixture(6, 4, each=20)
    numbers = np.unique(labels, return_inverse=True)[1] - 1
    found = describe_images(features, numbers)
    x = features.numpy()
    for i in (0, 37, 101):
        cosines = []
        for c in range(4):
            mean = x[numbers == c].mean(axis=0)
            cosines.append(x[i] @ mean / np.linalg.norm(mean))
        others = sorted((j for j in range(len(x)) if j != i), key=lambda j: -(x[i] @ x[j]))
        best = int(np.argmax(cosines))
        first, second = sorted(cosines)[::-1][:2]
        near = [sum(numbers[j] >= 0 for j in others[:n]) / n for n in (10, 30)]
        own = sum(numbers[j] == best for j in others[:30]) / 30
        np.testing.assert_allclose(found[i], [first, first - second, *near, own], atol=1e-5)


def test_the_share_of_images_of_known_classes_is_found():
    features, truth, labels = mixture(30, 15, spread=0.9, seed=3)
    n_labelled = int((labels >= 0).sum())
    images = ImageCounts(n_labelled, len(labels) - n_labelled)
    found = measure_known_share(features, labels, images, seed=0)
    true_share = np.isin(truth[labels < 0], labels[labels >= 0]).mean()
    assert true_share == pytest.approx(1 / 3)
    assert found.share == pytest.approx(true_share, abs=0.06)
    assert found.n_classes == pytest.approx(30, rel=0.1)


def test_two_labels_of_three_classes_are_needed():
    assert can_measure(np.array([0, 0, 1, 1, 2, 2, -1]))
    assert not can_measure(np.array([0, 0, 1, 1, 2, -1]))


def test_each_known_class_is_hidden_in_one_round():
    features, _, labels = mixture(12, 7, each=12)
    known = np.unique(labels[labels >= 0])
    rounds = hidden_problems(CountProblem(features, labels, ImageCounts(42, 102)), seed=0)
    assert len(rounds) == 5
    hidden = [np.setdiff1d(known, problem.labels) for problem, _ in rounds]
    assert sorted(np.concatenate(hidden)) == known.tolist()
    for problem, truth in rounds:
        assert len(problem.labels) == len(truth) == 42  # only labelled images: the truth is known
        assert (truth[problem.labels >= 0] == problem.labels[problem.labels >= 0]).all()
        counts = np.bincount(problem.labels[problem.labels >= 0])
        assert set(counts[counts > 0]) == {3}  # half of six labels
        assert problem.images == ImageCounts(int(counts.sum()), 42 - int(counts.sum()))


def test_a_part_keeps_the_share_of_labels_and_every_class():
    features, _, labels = mixture(20, 10, each=40)
    part = CountProblem(features, labels, ImageCounts(200, 600)).part(400, seed=0)
    assert len(part.labels) == 400
    assert (part.labels >= 0).sum() == 100
    few = np.where(np.arange(len(labels)) % 8 == 0, labels, -1)
    part = CountProblem(features, few, ImageCounts(int((few >= 0).sum()), 1)).part(100, seed=0)
    assert (part.labels >= 0).sum() == min((few >= 0).sum(), 50)
    assert part.images.unlabelled == 1


def test_the_peak_of_a_parabola_is_found_between_the_numbers():
    numbers = np.array([10.0, 20.0, 40.0, 80.0])
    assert peak(numbers, -((np.log(numbers) - math.log(30)) ** 2)) == pytest.approx(30)
    assert peak(numbers, np.array([3.0, 2.0, 1.0, 0.0])) == 10
    assert peak(numbers, np.array([np.nan, 2.0, 1.0, 0.0])) == 20


def test_the_mean_is_shrunk_by_its_noise():
    assert shrunk_mean(np.full(5, 0.2)) == pytest.approx(0.2)
    assert shrunk_mean(np.array([0.3, -0.3, 0.2, -0.2, 0.01])) == 0
    values = np.array([0.1, 0.2, 0.3])
    assert shrunk_mean(values) == pytest.approx(0.2 * (1 - 0.01 / 3 / 0.04))


def test_bias_is_removed_and_the_interval_grows_with_the_errors():
    found = _calibrate("merge", 120.0, [math.log(1.2)] * 5, (50, 500))
    assert found.n_classes == pytest.approx(100)
    spread = math.hypot(math.log(1.2) / 2, 0.5 / 50) * 2.5  # half of the classes are new, a fifth in the rounds
    assert found.high == pytest.approx(100 * math.exp(2.776 * spread), rel=0.01)
    assert found.error == pytest.approx(math.log(1.2))
    wider = _calibrate("merge", 120.0, [math.log(1.2) + e for e in (0.1, -0.1, 0.1, -0.1, 0)], (50, 500))
    assert wider.low < found.low < 100 < found.high < wider.high
    assert _calibrate("merge", 120.0, [1.0, 1.1, 1.2], (100, 500)).n_classes == 100  # not below the known classes


def test_the_interval_of_the_known_share_is_widened_by_errors_that_it_does_not_explain():
    share = share_of([0.9] * 40, [0.1] * 40, 0.42, (100, 300))
    draws = np.exp(np.random.default_rng(0).normal(math.log(64), 0.05, size=2000))
    found = Estimates({SHARE: 64.0}, share, draws, ())
    even = _calibrate_share(found, [0.05, -0.05] * 3, [0.05] * 6, (40, 500))
    assert even.low == pytest.approx(64 * math.exp(-1.96 * 0.05 * 2.023 / 1.96), rel=0.01)  # Student, 39 degrees
    wide = _calibrate_share(found, [0.15, -0.15] * 3, [0.05] * 6, (40, 500))
    assert math.log(wide.high / 64) == pytest.approx(3 * math.log(even.high / 64), rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_interval_has_the_number_of_classes_of_a_mixture(seed, tmp_path):
    features, _, labels = mixture(24, 12, each=16, dim=16, seed=seed)
    steps = []
    count = count_classes(features, labels, max_classes=60, seed=seed, on_step=steps.append, search="calibrated")
    assert count.interval is not None
    assert count.interval[0] <= 24 <= count.interval[1]
    assert abs(count.n_classes - 24) <= 4
    assert count.start == count.interval[1]
    assert {estimate.estimator for estimate in count.estimates} == {
        *(SHARE, "labelled accuracy", "silhouette", "head", "merge")
    }
    assert count.estimates[0].estimator in count.reason
    assert all(len(estimate.errors) == 5 for estimate in count.estimates)
    assert len(steps) == class_count.EXPECTED_STEPS
    assert f"about {count.n_classes} classes, between {count.interval[0]} and {count.interval[1]}" == count.description
    count.write(tmp_path / "class-count.json")
    assert ClassCount.read(tmp_path / "class-count.json") == count


def test_few_known_classes_have_no_interval_and_the_reason_says_so():
    features, _, labels = mixture(6, 3, each=20, spread=0.2)
    count = count_classes(features, labels, max_classes=12, n_init=2, search="calibrated")
    assert count.interval is None
    assert count.start == count.n_classes
    assert "an interval needs two labels of each of 4 known classes" in count.reason


@pytest.mark.filterwarnings("ignore:the estimate of:promptcal.errors.PromptCALWarning")
def test_two_labels_of_four_classes_are_enough():
    features, _, labels = mixture(6, 4, each=4, dim=6)
    count = count_classes(features, labels, max_classes=12, search="calibrated")
    assert count.interval is not None
    assert 4 <= count.interval[0] <= count.n_classes <= count.interval[1] <= 12


def test_the_largest_number_must_be_above_the_known_classes():
    features, _, labels = mixture(6, 5, each=10)
    with pytest.raises(ConfigError, match="above the 5 known classes"):
        count_classes(features, labels, max_classes=5, search="calibrated")
