"""Connections of clusters against plain loops, and merges and splits of Gaussian mixtures with known answers."""

import numpy as np
import pytest
import torch

from promptcal.discovery.heads import nearest_neighbours
from promptcal.discovery.links import ClassConnections, Links, measure_connections
from promptcal.discovery.merging import merge_indistinguishable, suggest_merges
from promptcal.metrics import contingency_table


@pytest.fixture
def linked():
    generator = np.random.default_rng(0)
    clusters = generator.integers(4, size=60)
    neighbours = np.stack([generator.permutation(np.delete(np.arange(60), i))[:5] for i in range(60)])
    return neighbours, clusters


def loop_connections(neighbours, clusters, n_clusters):
    """The definition, link by link."""
    counts = np.zeros((n_clusters, n_clusters))
    for i, row in enumerate(neighbours):
        for j in row:
            counts[clusters[i], clusters[j]] += 1
    sizes = [int((clusters == c).sum()) for c in range(n_clusters)]
    found = np.zeros((n_clusters, n_clusters))
    for a in range(n_clusters):
        for b in range(n_clusters):
            within = [counts[c, c] / (sizes[c] * (sizes[c] - 1)) if sizes[c] > 1 else 0 for c in (a, b)]
            if a != b and all(within):
                found[a, b] = (counts[a, b] + counts[b, a]) / (2 * sizes[a] * sizes[b]) / (within[0] * within[1]) ** 0.5
    return found


def test_connections_are_those_of_a_plain_loop(linked):
    np.testing.assert_allclose(Links.of(*linked, 5).connections(), loop_connections(*linked, 5), rtol=1e-12)


def test_merged_links_are_those_of_the_merged_clusters(linked):
    neighbours, clusters = linked
    merged = Links.of(neighbours, clusters, 4).merged(1, 3)
    expected = loop_connections(neighbours, np.where(clusters == 3, 1, clusters), 4)
    np.testing.assert_allclose(merged.connections(), expected, rtol=1e-12)


def test_a_cluster_that_is_divided_at_random_has_a_connection_near_1():
    points = torch.nn.functional.normalize(torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    halves = np.random.default_rng(0).integers(2, size=2000)
    links = Links.of(nearest_neighbours(points, 10).numpy(), halves, 2)
    assert links.connections()[0, 1] == pytest.approx(1, abs=0.05)


def test_thresholds_follow_the_classes_with_labels():
    between, halves = np.linspace(0.01, 0.4, 40), np.full(40, 0.2)
    found = ClassConnections(between, halves)
    assert found.merge_threshold() == pytest.approx(np.sort(between)[-3])  # two of 40 classes are above it: 5 %
    assert (between > found.merge_threshold()).sum() == 2
    assert found.suggestion_threshold() == pytest.approx(0.2)
    assert found.split_threshold() == pytest.approx(0.2)
    assert found.false_merge_rate(0.395) == pytest.approx(2 / 41)
    few = ClassConnections(np.array([0.1, 0.05]), np.array([0.3, np.nan]))
    assert few.merge_threshold() == pytest.approx(0.3)
    assert ClassConnections(np.array([0.1]), np.array([0.3])).merge_threshold() == np.inf
    assert ClassConnections(np.array([0.1, 0.2]), np.array([np.nan, np.nan])).merge_threshold() == np.inf


@pytest.fixture(scope="module")
def mixture():
    """Eight Gaussian classes of 60 points; clusters 0 to 5 are the first six classes. Class 6 is divided into the
    clusters 6 and 7, and cluster 8 is class 7."""
    generator = np.random.default_rng(1)
    centres = np.eye(8, 24)
    truth = np.repeat(np.arange(8), 60)
    points = centres[truth] + 0.12 * generator.normal(size=(len(truth), 24))
    features = torch.nn.functional.normalize(torch.from_numpy(points).float(), dim=1)
    clusters = np.where(truth == 7, 8, truth)
    clusters[(truth == 6) & (points[:, 20] > 0)] = 7
    return features, clusters


def test_only_the_parts_of_one_class_are_merged(mixture):
    features, clusters = mixture
    connections = measure_connections(features, clusters, 9, 6)
    assert [(m.kept, m.other) for m in merge_indistinguishable(connections, least=6)] == [(6, 7)]
    assert merge_indistinguishable(connections, least=9) == []
    assert suggest_merges(connections)[0][:2] == (6, 7)


def test_known_classes_are_not_merged(mixture):
    """The same parts are two known classes, or a known and a discovered one."""
    features, clusters = mixture
    renamed = np.array([2, 3, 4, 5, 6, 7, 0, 1, 8])[clusters]  # the parts are clusters 0 and 1
    assert merge_indistinguishable(measure_connections(features, renamed, 9, 8), least=1, into_known=True) == []
    renamed = np.array([1, 2, 3, 4, 5, 6, 0, 7, 8])[clusters]  # part 0 is known, part 7 is not
    connections = measure_connections(features, renamed, 9, 7)
    assert merge_indistinguishable(connections, least=1) == []
    assert [(m.kept, m.other) for m in merge_indistinguishable(connections, least=1, into_known=True)] == [(0, 7)]


def test_a_cluster_of_two_classes_has_halves_that_are_less_connected_than_those_of_a_class(mixture):
    features, clusters = mixture
    joined = np.minimum(clusters, 6)  # classes 6 and 7 in one cluster
    connections = measure_connections(features, joined, 7, 6)
    assert connections.halves[6] < connections.classes.split_threshold() / 5


def test_few_images_have_no_halves():
    features = torch.nn.functional.normalize(torch.randn(7, 4), dim=1)
    assert np.isnan(measure_connections(features, np.zeros(7, dtype=np.int64), 1, 1).halves).all()


def test_links_count_like_a_contingency_table(linked):
    neighbours, clusters = linked
    counts = Links.of(neighbours, clusters, 4).counts
    assert counts.sum() == neighbours.size
    np.testing.assert_array_equal(counts, contingency_table(np.repeat(clusters, 5), clusters[neighbours].ravel(), 4, 4))
