"""Partitions: renumbering moves clusters, centres and columns together, and labels keep their say."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from promptcal.discovery.partition import Partition, centroid_probabilities, classifier_probabilities, nearest_centres
from promptcal.models import ClassifierNetwork


class Columns(ClassifierNetwork):
    """A classifier whose logits are the first features themselves."""

    def __init__(self, n):
        torch.nn.Module.__init__(self)
        self.n = n

    def classify(self, features):
        return 3 * features[:, : self.n]


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(60, 7, generator=generator), dim=1)


def test_by_classifier_is_argmax_with_means_as_centres(features):
    partition = Partition.by_classifier(features, Columns(5))
    for i, row in enumerate(features.tolist()):
        assert partition.clusters[i] == max(range(5), key=lambda c, row=row: row[c])
    for c in range(5):
        members = features[torch.from_numpy(partition.clusters == c)]
        assert torch.allclose(partition.centres[c], members.mean(dim=0), atol=1e-6)


def test_a_class_nothing_falls_to_has_a_centre_without_nan():
    features = torch.eye(4)[[0, 0, 2]]
    partition = Partition.by_classifier(features, Columns(4))
    assert torch.equal(partition.centres[[1, 3]], torch.zeros(2, 4))


def test_new_clusters_are_renumbered_by_size_with_their_columns(features):
    partition = Partition.by_classifier(features, Columns(6)).new_by_size(2)
    sizes = np.bincount(partition.clusters, minlength=6)
    assert sorted(sizes[2:], reverse=True) == sizes[2:].tolist()
    original = Partition.by_classifier(features, Columns(6))
    assert np.array_equal(partition.columns.numpy()[partition.clusters], original.clusters)
    assert partition.columns[:2].tolist() == [0, 1]
    shares = classifier_probabilities(features, Columns(6), partition.columns)
    assert np.array_equal(shares.argmax(dim=1).numpy(), partition.clusters)
    for c in range(6):
        assert torch.equal(partition.centres[c], original.centres[partition.columns[c]])


def test_classes_name_the_clusters_their_labels_lie_in_one_to_one():
    generator = np.random.default_rng(0)
    clusters = generator.integers(6, size=80)
    labels = np.where(generator.random(80) < 0.5, generator.integers(3, size=80), -1)
    partition = Partition(clusters, torch.arange(6.0).unsqueeze(1)).named_by(labels)
    hits = sum(int(c == y) for c, y in zip(partition.clusters, labels, strict=True) if y >= 0)
    table = np.array([[np.sum((clusters == c) & (labels == y)) for y in range(3)] for c in range(6)])
    assert hits == table[linear_sum_assignment(table, maximize=True)].sum()
    # the same division under other numbers
    assert len({(a, b) for a, b in zip(clusters, partition.clusters, strict=True)}) == 6
    assert np.array_equal(partition.centres[partition.clusters].squeeze(1).numpy(), clusters)


def test_a_class_whose_labels_share_a_cluster_gets_another():
    partition = Partition(np.array([4, 4, 4, 1, 2]), torch.arange(5.0).unsqueeze(1))
    named = partition.named_by(np.array([0, 0, 1, -1, -1]))
    assert named.clusters[:2].tolist() == [0, 0]
    assert sorted(named.centres.flatten().tolist()) == [0, 1, 2, 3, 4]


def test_nothing_labelled_leaves_the_numbers():
    partition = Partition(np.array([2, 0, 1]), torch.arange(3.0).unsqueeze(1))
    assert partition.named_by(np.full(3, -1)).clusters.tolist() == [2, 0, 1]


def test_labelled_images_are_kept_in_their_class():
    partition = Partition(np.array([2, 2, 1]), torch.zeros(3, 1)).keeping(np.array([0, -1, -1]))
    assert partition.clusters.tolist() == [0, 2, 1]


def test_nearest_centre_is_by_distance_and_shares_by_cosine(features):
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(4, 7, generator=generator)
    assert torch.equal(nearest_centres(features, centres), torch.cdist(features, centres).argmin(dim=1))
    shares = centroid_probabilities(features, centres, 0.1)
    cosines = torch.nn.functional.cosine_similarity(features[3], centres)
    assert torch.allclose(shares[3], torch.exp(cosines / 0.1) / torch.exp(cosines / 0.1).sum(), atol=1e-6)
