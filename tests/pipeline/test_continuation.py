"""Where the categories of a previous run continue, by hand."""

import numpy as np
import pytest
import torch

from promptcal.discovery import SemiSupervisedKMeans
from promptcal.discovery.kmeans import Limits
from promptcal.discovery.partition import Partition
from promptcal.errors import ConfigError
from promptcal.pipeline import continuation
from promptcal.pipeline.continuation import (
    CategoryTargets,
    Continuation,
    category_targets,
    classified_right,
    is_clearly_better,
    supported_classes,
)

PREVIOUS = ["ape", "bee", "new-1", "new-2", "new-3"]
SIZES = np.array([10, 10, 6, 8, 4])


def targets(classes, shared, n_clusters, similarity=None):
    shared = np.array(shared)
    similarity = np.zeros(shared.shape) if similarity is None else np.array(similarity)
    found = category_targets(PREVIOUS, classes, shared, SIZES, similarity, n_clusters)
    return found.clusters.tolist(), found.confirmed.tolist(), found.n_clusters


def test_named_and_merged_categories_are_one_confirmed_class():
    shared = [[3, 0, 0, 0, 0], [0, 3, 0, 0, 0], [0, 0, 6, 7, 0]]  # owl names new-2, and new-1 is merged into it
    assert targets(["ape", "bee", "owl"], shared, 4) == ([0, 1, 2, 2, 3], [True] * 4 + [False], 4)


def test_a_few_labels_do_not_merge_a_category():
    shared = [[3, 0, 2, 0, 0], [0, 3, 0, 0, 0]]
    assert targets(["ape", "bee"], shared, 5) == ([0, 1, 2, 3, 4], [True, True, False, False, False], 5)


def test_a_class_without_a_category_takes_the_place_of_the_nearest_one_without_a_name():
    shared = [[3, 0, 0, 0, 0], [0, 3, 0, 0, 0], [2, 0, 0, 0, 0]]  # owl was hidden in ape
    similarity = [[0] * 5, [0] * 5, [0.9, 0, 0.1, 0.2, 0.5]]
    found = targets(["ape", "bee", "owl"], shared, 5, similarity)
    assert found == ([0, 1, 3, 4, 2], [True, True, False, False, False], 5)
    # with one category more, every category without a name continues
    assert targets(["ape", "bee", "owl"], shared, 6, similarity)[0] == [0, 1, 3, 4, 5]


def test_with_fewer_categories_the_largest_without_a_name_continue():
    shared = [[3, 0, 0, 0, 0], [0, 3, 0, 0, 0]]
    assert targets(["ape", "bee"], shared, 3) == ([0, 1, -1, 2, -1], [True, True, False, False, False], 3)


FEATURES = torch.nn.functional.one_hot(torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 0])).float()


def test_a_class_takes_no_category_that_has_more_labels_of_another_one():
    """Ape has a category. Most of new-1 are labelled ape, which merges it, and two by mistake bee."""
    shared = np.array([[5, 10], [0, 2]])
    found = category_targets(["ape", "new-1"], ["ape", "bee"], shared, np.array([9, 20]), np.zeros((2, 2)), 2)
    assert found.clusters.tolist() == [0, 0]
    shared = np.array([[5, 2], [0, 10]])
    found = category_targets(["ape", "new-1"], ["ape", "bee"], shared, np.array([9, 20]), np.zeros((2, 2)), 2)
    assert found.clusters.tolist() == [0, 1]


@pytest.fixture
def continued():
    """Ape has images 0 to 3 (0 is labelled, 3 is marked as wrong), bee 4 and 5 (labelled), new-1 6 and 7; 8 is new."""

    def build(n_classes=3, *, keep=False, trained=True):
        before = np.array([0, 0, 0, 0, 1, 1, 2, 2, -1])
        labels = np.array([0, -1, -1, -1, -1, 1, -1, -1, -1])
        released = np.arange(9) == 3
        found = CategoryTargets(np.array([0, 1, 2]), np.array([True, True, False]), 3)
        options = {"keep": keep, "trained": trained, "has_new_label": labels >= 0}
        return Continuation.of(before, labels, released, found, n_classes, FEATURES, **options), labels

    return build


def test_confirmed_images_stay_or_move_to_another_class(continued):
    free, labels = continued()
    assert free.start.tolist() == [0, 0, 0, -1, 1, 1, 2, 2, -1]
    assert np.flatnonzero(free.confirmed).tolist() == [1, 2, 4]
    moved = Partition.of(np.array([0, 1, 2, 2, 2, 1, 2, 0, 1]), torch.zeros(3, 2))
    assert free.holding(moved, 2).clusters.tolist() == [0, 1, 0, 2, 1, 1, 2, 0, 1]
    kept, _ = continued(keep=True)
    assert kept.holding(moved, 2).clusters.tolist() == [0, 0, 0, 2, 1, 1, 2, 0, 1]
    assert kept.fixed(labels).tolist() == [0, 0, 0, -1, 1, 1, -1, -1, -1]
    clusters = np.array([0, 1, 0, 2, 1, 1, 2, 2, 2])
    for found in (free, kept):
        (loss,) = found.losses(clusters, labels, ["ape", "bee"])
        assert (loss.name, loss.images, loss.lost, loss.into, loss.kept) == ("ape", 3, 1, {"bee": 1}, found.keep)
    assert "the confirmed category ape kept 1 of 3 images (33%)" in loss.message()


def test_without_training_the_read_out_fills_only_added_categories(continued):
    """Images stay where they started, but 3 and 8 have no category, and 3 is an added one."""
    moved = Partition.of(np.array([0, 1, 2, 2, 0, 1, 0, 3, 0]), torch.zeros(4, 2))
    found, _ = continued(4, trained=False)
    assert found.holding(moved, 2).clusters.tolist() == [0, 0, 0, 2, 1, 1, 2, 3, 0]
    assert continued(4)[0].holding(moved, 2).clusters.tolist() == moved.clusters.tolist()  # the network was trained


def two_groups(n=40, n_moved=12):
    """Two groups of images. The previous run has the last ``n_moved`` of the second one in the first category; every
    third image has a label, and the rows that were in the wrong category."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[3.0, 0, 0, 0], [0, 3.0, 0, 0]]).repeat_interleave(n, dim=0)
    features = torch.nn.functional.normalize(centres + 0.8 * torch.randn(2 * n, 4, generator=generator), dim=1)
    truth = np.repeat([0, 1], n)
    before = truth.copy()
    before[-n_moved:] = 0
    return features, truth, before, np.where(np.arange(2 * n) % 3 == 0, truth, -1)


def test_labels_move_the_images_of_a_wrong_category_to_their_class(monkeypatch):
    """One image in a round, of 53 without a label."""
    features, truth, before, labels = two_groups()
    targets = CategoryTargets(np.array([0, 1]), np.array([True, True]), 2)
    nothing = np.zeros(80, dtype=bool)

    def build(was, **options):
        options = {"keep": False, "trained": False, "has_new_label": labels >= 0, **options}
        return Continuation.of(was, labels, nothing, targets, 2, features, **options)

    wrong = (before != truth) & (labels < 0)
    was = before
    for _ in range(wrong.sum()):
        found = build(was)
        was = np.where(labels < 0, found.start, before)
    assert np.array_equal(found.start[~wrong], truth[~wrong])
    assert (found.start == truth)[wrong].mean() > 0.8
    found = build(before)
    moved_on = Partition.of(1 - found.start, torch.zeros(2, 4))  # whatever the read-out says
    assert np.array_equal(found.holding(moved_on, 2).clusters, found.start)
    assert found.losses(found.start, labels, ["ape", "bee"]) == []  # too few to be reported
    monkeypatch.setattr(continuation, "REPORTED_SHARE", 0.0)
    (loss,) = found.losses(found.start, labels, ["ape", "bee"])
    assert (loss.name, loss.lost) == ("ape", 1)
    for stays in (build(before, keep=True), build(before, trained=True), build(before, has_new_label=nothing)):
        assert np.array_equal(stays.start, stays.origin)


def test_more_categories_than_before_may_split_any_unless_they_are_kept(continued):
    assert not continued(4)[0].confirmed.any()
    assert continued(4, keep=True)[0].confirmed.sum() == 3
    with pytest.raises(ConfigError, match="too few images for 5 more categories"):
        continued(8, keep=True)


def test_a_confirmed_category_that_more_categories_split_is_reported(continued):
    """Image 1 of ape goes to bee, and image 2 to the added category, which has no name yet."""
    found, labels = continued(4)
    (loss,) = found.losses(np.array([0, 1, 3, 2, 1, 1, 2, 2, 2]), labels, ["ape", "bee"])
    assert (loss.name, loss.images, loss.lost) == ("ape", 3, 2)
    assert loss.into == {"bee": 1, "categories without a name": 1}
    assert loss.message().endswith("lost 2 of 3 images (67%): 1 to bee, 1 to categories without a name")


def test_starts_are_the_previous_members_and_the_labelled_images(continued):
    found, labels = continued()
    features = torch.arange(18.0).view(9, 2)
    members, labelled = found.starts(features, labels)
    assert torch.equal(members, torch.stack([features[:3].mean(0), features[4:6].mean(0), features[6:8].mean(0)]))
    assert torch.equal(labelled, torch.stack([features[0], features[5], features[6:8].mean(0)]))


def test_restricted_points_stay_in_the_first_clusters():
    """Fresh clusters lower the inertia by splitting a class; its restricted points stay in it."""
    points = np.array([[0.0], [1.0], [4.0], [5.0], [9.0], [9.5]])
    labels = [0, -1, -1, -1, 1, -1]
    free = SemiSupervisedKMeans(3, random_state=0).fit(points, labels, init=[[1.0], [9.0], [4.5]])
    assert free.labels_.tolist() == [0, 0, 2, 2, 1, 1]
    restricted = torch.tensor([False, True, True, False, False, False])
    limits = Limits(restricted, 2, torch.zeros(3, dtype=torch.bool))
    held = SemiSupervisedKMeans(3, random_state=0).fit(points, labels, init=[[1.0], [9.0], [4.5]], limits=limits)
    assert held.labels_.tolist() == [0, 0, 0, 2, 1, 1]
    assert np.allclose(held.cluster_centers_.ravel(), [5 / 3, 9.25, 5.0])
    for seed in range(20):  # drawn starts and empty clusters obey it too
        limits = Limits(restricted, 2, torch.zeros(4, dtype=torch.bool))
        drawn = SemiSupervisedKMeans(4, n_init=1, random_state=seed).fit(points, labels, limits=limits)
        assert (drawn.labels_[[1, 2]] < 2).all()


def test_a_closed_cluster_has_only_its_labelled_points():
    points = np.array([[0.0], [1.0], [1.1], [9.0], [9.5]])
    labels = [0, -1, 1, -1, -1]  # the point at 1 is nearest to the label at 1.1
    free = SemiSupervisedKMeans(3, random_state=0).fit(points, labels)
    assert free.labels_.tolist() == [0, 1, 1, 2, 2]
    limits = Limits(torch.zeros(5, dtype=torch.bool), 2, torch.tensor([False, True, False]))
    held = SemiSupervisedKMeans(3, random_state=0).fit(points, labels, limits=limits)
    assert held.labels_.tolist() == [0, 0, 1, 2, 2]
    assert np.allclose(held.cluster_centers_.ravel(), [0.5, 1.1, 9.25])


def test_labels_that_others_contradict_do_not_support_their_class():
    """Class 1 has a single label, class 2 two labels far apart, class 3 two labels beside each other."""
    angles = np.radians([0, 4, 8, 12, 60, -20, 40, 80, 82, 3])
    labels = np.array([0, 0, 0, 0, 1, 2, 2, 3, 3, -1])
    features = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1)).float()
    assert supported_classes(features, labels, 4).tolist() == [True, False, False, True]
    assert supported_classes(features, np.full(10, -1), 0).tolist() == []


def test_a_class_that_its_labels_do_not_support_is_closed():
    """Owl has two labels far apart, yak has two beside each other. Neither has a category; bee has one."""
    angles = np.radians([0, 4, 20, 50, 80, 82, 120, 124])
    features = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1)).float()
    before, labels = np.array([0, 0, 0, 0, 0, 0, 1, 1]), np.array([0, -1, 2, 2, 3, 3, 1, -1])
    labels[3] = 2
    features[2], features[3] = features[0], features[6]
    found = Continuation.of(
        before, labels, np.zeros(8, dtype=bool), CategoryTargets(np.array([0, 1]), np.array([True, True]), 4), 4,
        features, keep=False, trained=False, has_new_label=labels >= 0,
    )  # fmt: skip
    assert found.closed.tolist() == [False, False, True, False]


def test_a_labelled_image_is_classified_without_itself():
    features = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]), dim=1)
    partition = Partition.from_members(features, torch.tensor([0, 1, 1, 1]), 2)
    assert classified_right(features, partition, np.array([0, 1, 1, -1])).tolist() == [False, False, True]


def test_clearly_better_is_two_standard_errors():
    assert not is_clearly_better(np.array([True] * 4), np.array([False] * 4))  # 4 - 0 = 2 * sqrt(4)
    assert is_clearly_better(np.array([True] * 5), np.array([False] * 5))
    assert not is_clearly_better(np.array([True] * 9 + [False] * 4), np.array([False] * 9 + [True] * 4))
