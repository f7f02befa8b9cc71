"""The estimated number of classes on mixtures with a known number, and the search on functions with a known peak."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from promptcal.discovery import count_classes, trials
from promptcal.discovery.class_count import default_max_classes, search_brent
from promptcal.discovery.trials import Trial, Trials
from promptcal.errors import ConfigError, LabelError, PromptCALWarning


def mixture(classes, known, each=40, dim=32, spread=0.8, seed=0):
    """Gaussians around unit centres, L2-normalised; half of the points of the first ``known`` ones are labelled."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    truth = np.repeat(np.arange(classes), each)
    points = centres[truth] + spread / np.sqrt(dim) * generator.normal(size=(len(truth), dim))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels = np.where((truth < known) & (generator.random(len(truth)) < 0.5), truth, -1)
    return torch.from_numpy(points).float(), labels


@pytest.mark.parametrize("seed", [0, 1])
def test_the_estimate_for_a_mixture_is_within_a_tenth(seed):
    features, labels = mixture(30, 15, spread=0.5, seed=seed)
    count = count_classes(features, labels, max_classes=100, seed=seed)
    assert 27 <= count.n_classes <= 33
    assert not count.at_bound
    assert len(count.trials) <= 24
    assert count.bounds == (15, 100)


def test_each_number_is_clustered_once(monkeypatch):
    clustered, shown = [], []
    original = trials.SemiSupervisedKMeans

    def watch(n_classes, *options):
        clustered.append(n_classes)
        return original(n_classes, *options)

    monkeypatch.setattr(trials, "SemiSupervisedKMeans", watch)
    features, labels = mixture(8, 4, each=15)
    count = count_classes(features, labels, on_step=lambda note: shown.append(int(note.split()[0])))
    assert len(clustered) == len(set(clustered))
    assert clustered == shown
    assert sorted(clustered) == [trial.n_classes for trial in count.trials]
    assert {4, default_max_classes(4, 120)} <= set(clustered)


def test_a_trial_is_k_means_without_labels_scored_on_the_labelled_images():
    features, labels = mixture(5, 3, each=20, spread=0.3)
    trial = Trials(features, labels, n_init=5, max_iter=100, tol=1e-4, seed=0)(5)
    reference = KMeans(5, n_init=10, random_state=0).fit(features.numpy())
    assert trial.inertia == pytest.approx(reference.inertia_, rel=1e-4)
    assert trial.silhouette == pytest.approx(silhouette_score(features.numpy(), reference.labels_), abs=1e-5)
    labelled = labels >= 0
    best = max(
        sum(chosen[t] == p for t, p in zip(labels[labelled], reference.labels_[labelled], strict=True))
        for chosen in itertools.permutations(range(5), 3)
    )
    assert trial.accuracy == pytest.approx(best / labelled.sum())


@pytest.mark.parametrize("peak", [5, 50, 117])
def test_the_search_finds_the_peak_of_a_unimodal_function(peak):
    seen = {}

    def score(n):
        assert 3 <= n <= 120
        seen[n] = -abs(n - peak) / 100
        return seen[n]

    search_brent(score, 3, 120)
    assert abs(max(seen, key=seen.get) - peak) <= 1
    assert len(seen) <= 22


def test_the_published_search_is_brents_between_the_known_classes_and_1000():
    """The trials are those of SciPy's bounded search, and the most accurate one is the estimate."""
    features, labels = mixture(12, 6, each=100, spread=0.4)
    count = count_classes(features, labels, search="published", n_init=2, max_iter=20)
    trials = Trials(features, labels, n_init=2, max_iter=20, tol=1e-4, seed=0)
    tried = []

    def cost(x):
        tried.append(round(x))
        return -trials(round(x)).accuracy

    minimize_scalar(cost, bounds=(6, 1000), method="bounded", options={"xatol": 0.5, "maxiter": 40})
    assert [trial.n_classes for trial in count.trials] == sorted(set(tried))
    assert count.bounds == (6, 1000)
    best = max(trial.accuracy for trial in count.trials)
    assert count.n_classes == min(trial.n_classes for trial in count.trials if trial.accuracy == best)


def test_the_published_search_does_not_look_at_the_silhouette():
    """Two of six well separated classes are labelled, so fewer clusters than the most compact ones are as accurate."""
    features, labels = mixture(6, 2, each=30, spread=0.05)
    count = count_classes(features, labels, search="published", n_init=5, max_iter=20, max_classes=20)
    accurate = [trial for trial in count.trials if trial.accuracy == 1]
    assert count.n_classes == min(trial.n_classes for trial in accurate)
    assert count.n_classes != max(accurate, key=lambda trial: trial.silhouette).n_classes


def test_the_best_trials_are_within_one_standard_error_of_the_best():
    features, labels = mixture(5, 3, each=20)
    trials = Trials(features, labels, n_init=1, max_iter=10, tol=1e-4, seed=0)
    n = (labels >= 0).sum()
    share = (0.9 * n + 2) / (n + 4)
    error = (share * (1 - share) / (n + 4)) ** 0.5
    accuracies = {4: 0.5, 5: 0.9 - 1.01 * error, 6: 0.9, 8: 0.9 - 0.99 * error, 12: 0.1}
    trials._done = {k: Trial(k, accuracy, 0.0, 0.0) for k, accuracy in accuracies.items()}
    assert [trial.n_classes for trial in trials.near_best()] == [6, 8]
    assert trials.bracket(trials.near_best()) == (5, 12)
    assert trials.bracket([trials(4), trials(12)]) == (4, 12)


def test_among_equal_accuracies_the_highest_silhouette_wins():
    """Two of six well separated classes are labelled: many numbers find these two, but only 6 has tight clusters."""
    features, labels = mixture(6, 2, each=30, spread=0.05)
    count = count_classes(features, labels, max_classes=20)
    assert sum(trial.accuracy == 1.0 for trial in count.trials) > 1
    assert count.n_classes == 6


def test_an_estimate_at_a_bound_warns():
    features, labels = mixture(12, 6, each=20, spread=0.2)
    with pytest.warns(PromptCALWarning, match="estimate of 8 classes is the largest number that was tried"):
        assert count_classes(features, labels, max_classes=8).n_classes == 8
    features, labels = mixture(6, 6, each=20, spread=0.2)
    with pytest.warns(PromptCALWarning, match="estimate of 6 classes is that of the known ones"):
        assert count_classes(features, labels).at_bound


@pytest.mark.parametrize(
    ("known", "max_classes", "error", "message"),
    [
        (4, 4, ConfigError, "above the 4 known classes and at most the 80 images, not 4"),
        (4, 81, ConfigError, "not 81"),
        (0, None, LabelError, "at least 2 classes"),
        (1, None, LabelError, "at least 2 classes"),
    ],
)
def test_impossible_searches_are_errors(known, max_classes, error, message):
    with pytest.raises(error, match=message):
        count_classes(*mixture(8, known, each=10), max_classes=max_classes)


@pytest.mark.parametrize(
    ("known", "images", "most"), [(5, 1_500, 150), (80, 50_000, 1_000), (20, 100, 21), (9, 10, 10), (5, 5, 5)]
)
def test_the_default_maximum_is_a_tenth_of_the_images(known, images, most):
    assert default_max_classes(known, images) == most
