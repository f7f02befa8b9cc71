"""Assignments against loops: k-means with and without labels, a trained read-out, and a classifier."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from promptcal.discovery import SemiSupervisedKMeans
from promptcal.discovery.heads import train_heads
from promptcal.methods.assignment import ClassifierAssignment, Clustering, HeadAssignment, KMeansAssignment
from promptcal.models import ClassifierNetwork

N, CLASSES = 60, 5


class FirstFeatures(ClassifierNetwork):
    """A classifier whose outputs are three times the first features."""

    def __init__(self):
        torch.nn.Module.__init__(self)

    def classify(self, features):
        return 3 * features[:, :CLASSES]


@pytest.fixture
def features():
    """Around five points, far enough apart for k-means to find them."""
    generator = torch.Generator().manual_seed(0)
    points = torch.eye(7)[torch.arange(N) % CLASSES]
    return torch.nn.functional.normalize(points + 0.2 * torch.randn(N, 7, generator=generator), dim=1)


@pytest.fixture
def labels():
    return np.where(np.arange(N) % 3 == 0, np.array([2, 0, 1, -1, -1])[np.arange(N) % CLASSES], -1)


def kmeans(features, labels):
    return SemiSupervisedKMeans(CLASSES, n_init=10, random_state=0).fit(features, labels)


def heads(features, labels):
    fitted = kmeans(features, labels)
    starts, prior = torch.from_numpy(fitted.kept_centers_), torch.full((CLASSES,), 1 / CLASSES)
    return train_heads(features, labels, starts, prior=prior, seed=0)


CLUSTERING = Clustering(kmeans, heads)


def check_centroids(partition, features, members):
    for c in range(CLASSES):
        rows = [features[i] for i in range(N) if members[i] == c]
        torch.testing.assert_close(partition.centroids[c], sum(rows) / len(rows), rtol=1e-4, atol=1e-5)


def test_k_means_with_labels(features, labels):
    assignment = KMeansAssignment(0.07)
    found = assignment.partition(features, labels, CLUSTERING)
    assert (assignment.score_kind, assignment.temperature, assignment.labels_in_centroids) == ("cosines", 0.07, True)
    assert all(found.clusters[i] == labels[i] for i in range(N) if labels[i] >= 0)
    check_centroids(found, features, found.clusters)
    assert np.array_equal(assignment.clusters(features, labels, kmeans), kmeans(features, labels).labels_)
    assert np.array_equal(assignment.clusters(features, None, kmeans), kmeans(features, None).labels_)
    scores = assignment.scores(features, found)
    chosen = assignment.choose(features, scores, found.centroids)
    assert assignment.outputs(features, found) is None
    for i in range(N):
        for c in range(CLASSES):
            centroid = found.centroids[c]
            assert scores[i, c] == pytest.approx(float(features[i] @ centroid / centroid.norm()), abs=1e-5)
        distances = [float((features[i] - centroid).norm()) for centroid in found.centroids]
        assert int(chosen[i]) == distances.index(min(distances))


def test_plain_k_means_is_named_by_the_labels_afterwards(features, labels):
    assignment = KMeansAssignment(0.07, use_labels=False)
    found = assignment.partition(features, labels, CLUSTERING)
    plain = kmeans(features, None)
    assert not assignment.labels_in_centroids
    hits = [
        sum(order[plain.labels_[i]] == labels[i] for i in range(N) if labels[i] >= 0)
        for order in permutations(range(CLASSES))
    ]
    in_their_class = sum(
        int(torch.argmin((found.centroids - torch.from_numpy(plain.cluster_centers_[plain.labels_[i]])).norm(dim=1)))
        == labels[i]
        for i in range(N)
        if labels[i] >= 0
    )
    assert in_their_class == max(hits)
    check_centroids(found, features, np.array([found.columns.tolist().index(c) for c in plain.labels_]))


def test_the_trained_read_out(features, labels):
    assignment = HeadAssignment()
    found = assignment.partition(features, labels, CLUSTERING)
    assert (assignment.score_kind, assignment.labels_in_centroids) == ("outputs", True)
    assert all(found.clusters[i] == labels[i] for i in range(N) if labels[i] >= 0)
    check_centroids(found, features, found.clusters)
    moved = found.reordered(np.array([4, 2, 0, 1, 3]))
    scores = assignment.scores(features, moved)
    for i in range(N):
        for c in range(CLASSES):
            expected = features[i] @ moved.head.weight[c] + moved.head.bias[c]
            assert scores[i, c] == pytest.approx(float(expected), abs=1e-4)
    chosen = assignment.choose(features, scores, moved.centroids).numpy()
    assert np.array_equal(chosen[labels < 0], moved.clusters[labels < 0])


def test_merged_clusters_have_a_read_out(features, labels):
    assignment = HeadAssignment()
    merged = np.minimum(assignment.partition(features, labels, CLUSTERING).clusters, 3)
    now = assignment.from_clusters(features, merged, 4)
    chosen = assignment.choose(features, assignment.scores(features, now), now.centroids).numpy()
    assert (chosen == merged).mean() > 0.95


def test_labels_that_are_left_out_change_the_outputs_they_are_calibrated_by(features, labels):
    assignment = HeadAssignment()
    found = assignment.partition(features, labels, CLUSTERING)
    wrong = np.where(labels == 0, 1, labels)
    with_them, without = (
        assignment.outputs_by_labels(features, found, given)(features) for given in (wrong, np.full(N, -1))
    )
    assert with_them[labels == 0, 1].mean() > without[labels == 0, 1].mean()


def test_a_classifier_takes_the_largest_output(features, labels):
    assignment = ClassifierAssignment(FirstFeatures())
    assert (assignment.score_kind, assignment.temperature, assignment.labels_in_centroids) == ("outputs", 1.0, False)
    largest = [max(range(CLASSES), key=lambda c, row=row: row[c]) for row in features.tolist()]
    found = assignment.partition(features, labels, CLUSTERING)
    assert found.clusters.tolist() == [y if y >= 0 else c for y, c in zip(labels, largest, strict=True)]
    check_centroids(found, features, largest)
    assert assignment.clusters(features, None, kmeans).tolist() == largest
    assert assignment.clusters(features, labels, kmeans).tolist() == largest
    columns = torch.tensor([3, 0, 4, 1, 2])
    scores = assignment.scores(features, replace(found, columns=columns))
    for i, row in enumerate(features.tolist()):
        assert scores[i].tolist() == pytest.approx([3 * row[c] for c in columns])
    chosen = assignment.choose(features, scores, found.centroids)
    assert [int(columns[c]) for c in chosen] == largest
