"""The classifier on the labels, against scikit-learn and by hand."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from promptcal.discovery import label_classifier
from promptcal.discovery.label_classifier import (
    PENALTIES,
    fit_ridge,
    image_weights,
    least_margin,
    most_moves,
    moved_by_labels,
    preferred,
)


def groups(n_groups=4, n=60, spread=0.9, seed=0, dim=12):
    """Unit vectors around the axes, and the group of each."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(n_groups).repeat_interleave(n)
    points = 3 * torch.eye(n_groups, dim)[truth] + spread * torch.randn(len(truth), dim, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), truth.numpy()


def test_an_image_is_left_out_as_if_the_regression_was_fitted_without_it():
    features, truth = groups(3, 12)
    labels = np.where(np.arange(36) % 4 == 0, truth, -1)
    clusters = np.where(np.arange(36) % 5 == 0, -1, truth)
    clusters[labels >= 0] = labels[labels >= 0]
    weights = image_weights(labels, clusters, 3)
    members, weight = torch.from_numpy(clusters), torch.from_numpy(weights).float()
    ridge = fit_ridge(features, members, weight, 3)
    points = (features - features.mean(dim=0)).numpy()
    points = np.c_[points / np.linalg.norm(points, axis=1).mean(), np.ones(36)]
    targets = np.eye(3)[clusters] * (clusters >= 0)[:, None]
    for penalty in PENALTIES:
        found = ridge.outputs_without(features, members, weight, penalty).numpy()
        for i in range(36):
            others = weights * (np.arange(36) != i)
            oracle = Ridge(alpha=penalty, fit_intercept=False).fit(points, targets, sample_weight=others)
            assert np.allclose(found[i], oracle.predict(points[i : i + 1])[0], atol=2e-3)


def test_labels_weigh_as_much_as_the_other_images_and_every_category_the_same():
    labels, clusters = np.array([0, 1, -1, -1, -1, -1]), np.array([0, 1, 0, 0, 2, -1])
    weights = image_weights(labels, clusters, 4)
    assert np.allclose([weights[[0, 2, 3]].sum(), weights[1], weights[4]], 1 / 3)  # the last category is empty
    assert weights[0] / weights[2] == pytest.approx((1 / 2) / (1 / 3))
    assert weights[5] == 0


def test_the_preference_is_the_difference_of_the_outputs():
    outputs = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.1, 0.2]])
    found = preferred(outputs, np.array([2, 0]))
    assert found.clusters.tolist() == [1, 0]
    assert np.allclose(found.margins, [0.6, 0.0])


def test_the_margin_is_where_labelled_images_gain_most():
    margins = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.01])
    assert least_margin(np.array([1, 1, 0, 1, 1, -1, -1, 1]), margins) == 0.5
    assert least_margin(np.array([1, 1, -1, 1, -1, 1, -1, 1]), margins) == np.inf  # 2 < 1.5 * sqrt(2)
    assert least_margin(np.array([0, 0, 0, 0, 0, 0, 0, 1]), margins) == np.inf  # below the least margin
    assert least_margin(np.array([1, 0]), np.array([0.9, 0.8])) == np.inf  # a single label proves nothing
    assert least_margin(np.zeros(0), np.zeros(0)) == np.inf


def misplaced(share=1 / 3, seed=0):
    """Groups, of each of which a share is in the category of the next one. Half of the images have new labels, and are
    in the category of their label now: what they were in before."""
    features, truth = groups()
    random = np.random.default_rng(seed)
    before = np.where(random.random(240) < share, (truth + 1) % 4, truth)
    labels = np.where(random.random(240) < 0.5, truth, -1)
    return features, truth, labels, np.where(labels >= 0, labels, before), np.where(labels >= 0, before, -1)


EVERYWHERE = np.ones(4, dtype=bool)


def after_rounds(features, labels, clusters, before, n_clusters=4, is_open=EVERYWHERE, rounds=60):
    """Only a few images move in a round."""
    for _ in range(rounds):
        clusters = moved_by_labels(features, labels, clusters, before, n_clusters, is_open)
    return clusters


@pytest.mark.parametrize("block", [7, 4096])
def test_images_in_a_wrong_category_move_to_their_class(monkeypatch, block):
    monkeypatch.setattr(label_classifier, "BLOCK", block)
    features, truth, labels, clusters, before = misplaced()
    moved = after_rounds(features, labels, clusters, before)
    assert (clusters == truth)[labels < 0].mean() < 0.75
    assert (moved == truth)[labels < 0].mean() > 0.9
    assert np.array_equal(moved[labels >= 0], truth[labels >= 0])
    closed = after_rounds(features, labels, clusters, before, is_open=np.arange(4) != 2)
    assert not ((closed == 2) & (clusters != 2)).any()
    assert (closed != clusters).any()


def test_with_some_wrong_labels_too():
    features, truth, labels, clusters, before = misplaced()
    is_wrong = (labels >= 0) & (np.random.default_rng(2).random(240) < 0.05)
    labels = np.where(is_wrong, (labels + 2) % 4, labels)
    assert is_wrong.any()
    clusters = np.where(labels >= 0, labels, clusters)
    moved = after_rounds(features, labels, clusters, before)
    assert (moved == truth)[labels < 0].mean() > (clusters == truth)[labels < 0].mean() + 0.15


def test_an_old_label_is_compared_with_the_nearest_centroid():
    """The groups are long in one direction, along which the centroids of two of them are nearest to wrong images."""
    generator = torch.Generator().manual_seed(0)
    truth = np.repeat([0, 1], 150)
    points = torch.randn(300, 6, generator=generator) * torch.tensor([2.0, 0.2, 0.5, 0.5, 0.5, 0.5])
    points[:, 1] += torch.from_numpy(np.where(truth == 0, 0.4, -0.4))
    features = torch.nn.functional.normalize(points + torch.tensor([0, 0, 4.0, 0, 0, 0]), dim=1)
    labels = np.where(np.arange(300) % 3 == 0, truth, -1)
    nearest = (points[:, 0] > 0).long().numpy()
    clusters, nothing = np.where(labels >= 0, labels, nearest), np.full(300, -1)
    moved = after_rounds(features, labels, clusters, nothing, 2, EVERYWHERE[:2])
    assert (clusters == truth)[labels < 0].mean() < 0.6
    assert (moved == truth)[labels < 0].mean() > 0.7


def test_nothing_moves_if_the_labels_show_no_gain():
    """The categories are right, or the labels are random."""
    features, truth = groups()
    labels, nothing = np.where(np.arange(240) % 3 == 0, truth, -1), np.full(240, -1)
    before = np.where(labels >= 0, truth, -1)
    assert np.array_equal(moved_by_labels(features, labels, truth, before, 4, EVERYWHERE), truth)
    moved = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        labels = np.where(random.random(240) < 0.3, random.integers(0, 4, 240), -1)
        clusters, before = np.where(labels >= 0, labels, truth), np.where(labels >= 0, truth, -1)
        moved.append((after_rounds(features, labels, clusters, before) != clusters).mean())
    assert np.mean(moved) < 0.05
    assert np.array_equal(moved_by_labels(features, nothing, truth, nothing, 4, EVERYWHERE), truth)


def test_images_without_a_category_and_classes_without_labels_get_none():
    features, _, labels, clusters, before = misplaced(seed=1)
    clusters = np.where((labels == 3), before, clusters)
    labels = np.where(labels == 3, -1, labels)
    clusters[(labels < 0) & (np.arange(240) % 10 == 0)] = -1
    moved = after_rounds(features, labels, clusters, before)
    assert np.array_equal(moved == -1, clusters == -1)
    assert (moved != clusters).any()
    assert not ((moved == 3) & (clusters != 3)).any()


def test_no_category_loses_all_of_its_images():
    """An image of the first group would leave the category of the second one, but not a category that it has alone."""
    features, truth, labels, clusters, before = misplaced()
    image = np.flatnonzero((labels < 0) & (clusters == 0) & (truth == 0))[0]
    for category, expected in ((1, 0), (4, 4)):
        clusters[image] = category
        assert after_rounds(features, labels, clusters, before, 5)[image] == expected


def test_the_clearest_images_move_and_so_few_that_little_can_be_lost(monkeypatch):
    """Of 120 images, two thirds of which are in the right category, one may move."""
    assert most_moves(1000, 1.0) == 7  # all are right, and would be wrong
    assert most_moves(1000, 0.5) == 15  # half of those that move are wrong anyway
    assert most_moves(1000, 0.0) == 1000
    assert most_moves(100, 1.0) == 1
    features, _, labels, clusters, before = misplaced()
    some = moved_by_labels(features, labels, clusters, before, 4, EVERYWHERE)
    assert (some != clusters).sum() == 1
    monkeypatch.setattr(label_classifier, "most_moves", lambda n_images, accuracy: n_images)
    every = moved_by_labels(features, labels, clusters, before, 4, EVERYWHERE)
    assert (every != clusters).sum() > 20
    assert np.array_equal(every[some != clusters], some[some != clusters])
