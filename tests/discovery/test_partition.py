"""Partitions: clusters, centroids and columns are renumbered together."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from promptcal.discovery.partition import Partition, centroid_cosines, nearest_centroids, rank_clusters


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(60, 7, generator=generator), dim=1)


def of_largest(features, n):
    return Partition.from_members(features, features[:, :n].argmax(dim=1), n)


def test_centroids_are_means_and_0_without_members(features):
    partition = of_largest(features, 5)
    for c in range(5):
        members = features[torch.from_numpy(partition.clusters == c)]
        assert torch.allclose(partition.centroids[c], members.mean(dim=0), atol=1e-6)
    assert torch.equal(of_largest(torch.eye(4)[[0, 0, 2]], 4).centroids[[1, 3]], torch.zeros(2, 4))


def test_new_clusters_are_renumbered_by_size_with_their_columns(features):
    original = of_largest(features, 6)
    partition = original.new_by_size(2)
    sizes = np.bincount(partition.clusters, minlength=6)
    assert sorted(sizes[2:], reverse=True) == sizes[2:].tolist()
    assert np.array_equal(partition.columns.numpy()[partition.clusters], original.clusters)
    assert partition.columns[:2].tolist() == [0, 1]
    for c in range(6):
        assert torch.equal(partition.centroids[c], original.centroids[partition.columns[c]])


def test_each_class_names_the_cluster_with_most_of_its_labels():
    generator = np.random.default_rng(0)
    clusters = generator.integers(6, size=80)
    labels = np.where(generator.random(80) < 0.5, generator.integers(3, size=80), -1)
    partition = Partition.of(clusters, torch.arange(6.0).unsqueeze(1)).named_by(labels)
    hits = sum(int(c == y) for c, y in zip(partition.clusters, labels, strict=True) if y >= 0)
    table = np.array([[np.sum((clusters == c) & (labels == y)) for y in range(3)] for c in range(6)])
    assert hits == table[linear_sum_assignment(table, maximize=True)].sum()
    # the same clusters with other numbers
    assert len({(a, b) for a, b in zip(clusters, partition.clusters, strict=True)}) == 6
    assert np.array_equal(partition.centroids[partition.clusters].squeeze(1).numpy(), clusters)


def test_a_class_whose_labels_share_a_cluster_gets_another():
    partition = Partition.of(np.array([4, 4, 4, 1, 2]), torch.arange(5.0).unsqueeze(1))
    named = partition.named_by(np.array([0, 0, 1, -1, -1]))
    assert named.clusters[:2].tolist() == [0, 0]
    assert sorted(named.centroids.flatten().tolist()) == [0, 1, 2, 3, 4]


def test_without_labels_the_numbers_stay():
    partition = Partition.of(np.array([2, 0, 1]), torch.arange(3.0).unsqueeze(1))
    assert partition.named_by(np.full(3, -1)).clusters.tolist() == [2, 0, 1]


def test_labelled_images_stay_in_their_class():
    partition = Partition.of(np.array([2, 2, 1]), torch.zeros(3, 1)).keeping(np.array([0, -1, -1]))
    assert partition.clusters.tolist() == [0, 2, 1]


def test_nearest_is_by_distance_and_scores_are_cosines(features):
    centroids = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(nearest_centroids(features, centroids), torch.cdist(features, centroids).argmin(dim=1))
    cosines = centroid_cosines(features, centroids)
    assert torch.allclose(cosines[3], torch.nn.functional.cosine_similarity(features[3], centroids), atol=1e-6)


def test_clusters_are_ranked_by_probability():
    probabilities = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    ranked = rank_clusters(probabilities, torch.tensor([2, 0]))  # the cluster of the first is not the most likely one
    assert (ranked.clusters.tolist(), ranked.second.tolist()) == ([2, 0], [1, 1])
    assert ranked.confidence.tolist() == pytest.approx([0.3, 0.6])
    assert ranked.second_confidence.tolist() == pytest.approx([0.5, 0.3])
    alone = rank_clusters(torch.ones(2, 1), torch.zeros(2, dtype=torch.long))
    assert (alone.second.tolist(), alone.second_confidence.tolist()) == ([-1, -1], [0.0, 0.0])
