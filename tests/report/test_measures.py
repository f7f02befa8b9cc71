"""Measures of clusters and images, compared with plain loops."""

import math

import numpy as np
import pytest

from promptcal.report import measures


@pytest.fixture(scope="module")
def clustered():
    """60 unit vectors around 5 directions, their clusters (4 of them, some wrong, one empty) and confidences."""
    random = np.random.default_rng(0)
    directions = random.normal(size=(5, 12))
    groups = random.integers(0, 5, 60)
    points = directions[groups] + 0.6 * random.normal(size=(60, 12))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    clusters = np.where(random.random(60) < 0.15, random.integers(0, 4, 60), np.minimum(groups, 3))
    return points.astype(np.float32), clusters, np.round(random.random(60), 1)


def cosine(a, b):
    return float(np.dot(a.astype(float), b.astype(float)) / (np.linalg.norm(a) * np.linalg.norm(b)))


def centroid(points, clusters, c):
    return np.mean([p for p, k in zip(points, clusters, strict=True) if k == c], axis=0)


def test_cohesion_is_the_mean_cosine_with_the_mean_and_typical_images_are_confident(clustered):
    points, clusters, confidence = clustered
    centroids = measures.unit_centroids(points, clusters, 5)
    own = (points @ centroids.T)[np.arange(len(points)), clusters]
    found = measures.cohesion(own, clusters, 5)
    for c in range(4):
        members = [p for p, k in zip(points, clusters, strict=True) if k == c]
        assert found[c] == pytest.approx(np.mean([cosine(p, centroid(points, clusters, c)) for p in members]), abs=1e-5)
    assert math.isnan(found[4])  # an empty cluster
    order = measures.typical_order(clusters, confidence, own)
    assert order.tolist() == sorted(range(60), key=lambda i: (clusters[i], -confidence[i], -own[i]))
    assert len(set(confidence)) < 60  # there are ties


def test_second_best_cluster_and_its_margin(clustered):
    points, clusters, _ = clustered
    centroids = measures.unit_centroids(points, clusters, 5)
    found, margins = measures.second_best(points @ centroids.T, clusters, centroids)
    for i, point in enumerate(points):
        to = {c: cosine(point, centroid(points, clusters, c)) for c in range(4)}
        second = max((c for c in to if c != clusters[i]), key=to.__getitem__)
        assert found[i] == second
        assert margins[i] == pytest.approx(to[clusters[i]] - to[second], abs=1e-5)
    alone = np.zeros(60, dtype=int)
    centroids = measures.unit_centroids(points, alone, 2)
    assert np.isposinf(measures.second_best(points @ centroids.T, alone, centroids)[1]).all()


def test_at_the_doubtful_margin_the_second_probability_is_half_of_the_first():
    margin = measures.doubtful_margin(0.07)
    own, second = math.exp(0.8 / 0.07), math.exp((0.8 - margin) / 0.07)
    assert second / own == pytest.approx(0.5)


@pytest.mark.parametrize("known", [range(2), [3, 1]])
def test_nearest_known_class_leaves_itself_out(clustered, known):
    points, clusters, _ = clustered
    centroids = measures.unit_centroids(points, clusters, 5)
    nearest, value = measures.nearest_known(centroids, known)
    for c in range(4):
        to = {k: cosine(centroid(points, clusters, c), centroid(points, clusters, k)) for k in known if k != c}
        assert nearest[c] == max(to, key=to.__getitem__)
        assert value[c] == pytest.approx(max(to.values()), abs=1e-5)
    assert nearest[4] == -1  # empty
    assert (measures.nearest_known(centroids, [])[0] == -1).all()


def test_nearest_neighbours(clustered):
    points, _, _ = clustered
    found = measures.nearest_neighbours(points, 8)
    for i, point in enumerate(points):
        others = sorted((j for j in range(60) if j != i), key=lambda j: -cosine(point, points[j]))
        assert found[i].tolist() == others[:8]
    assert measures.nearest_neighbours(points[:3], 8).shape == (3, 2)
    assert measures.nearest_neighbours(points[:1], 8).shape == (1, 0)


def test_confusion_counts_unlabelled_images_and_puts_matches_on_the_diagonal():
    truth = ["cat", "cat", "dog", "emu", "emu", "emu", "yak", "yak", None, "cat"]
    clusters = np.array([0, 0, 1, 3, 3, 2, 2, 2, 2, 1])
    labelled = np.array([False] * 9 + [True])
    found = measures.confusion(truth, clusters, labelled, ["cat", "dog"], 4, [0, 1])
    assert found.classes == ["cat", "dog", "emu", "yak"]
    assert found.clusters == [0, 1, 3, 2]  # emu is matched to 3, yak to 2
    expected = np.zeros((4, 4), dtype=int)
    for t, c, given in zip(truth, clusters, labelled, strict=True):
        if t is not None and not given:
            expected[found.classes.index(t), found.clusters.index(c)] += 1
    assert np.array_equal(found.counts, expected)
    assert found.counts.sum() == 8
    assert found.matched_rows == [0, 1, 2, 3]
    fewer = measures.confusion(truth, np.minimum(clusters, 2), labelled, ["cat", "dog"], 3, [0, 1])
    assert fewer.matched_rows == [0, 1, 2]  # no cluster matches yak, the less frequent class
    assert measures.confusion([None], np.array([0]), np.array([False]), ["cat"], 2, [0]) is None
