"""Measures of clusters and images, compared with plain loops."""

import math

import numpy as np
import pytest
from rich.console import Console

from promptcal.data.benchmarks import load_benchmark
from promptcal.discovery.nearest_known import nearest_known, sums_by_cluster, unit_centroids
from promptcal.models import PromptedViT
from promptcal.report import measures
from promptcal.report.cluster_analysis import ClusterAnalysis
from promptcal.run import Assignments
from promptcal.training.embedding import embed_images


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
    centroids = unit_centroids(points, clusters, 5)
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
    centroids = unit_centroids(points, clusters, 5)
    found, margins = measures.second_best(points @ centroids.T, clusters, centroids)
    for i, point in enumerate(points):
        to = {c: cosine(point, centroid(points, clusters, c)) for c in range(4)}
        second = max((c for c in to if c != clusters[i]), key=to.__getitem__)
        assert found[i] == second
        assert margins[i] == pytest.approx(to[clusters[i]] - to[second], abs=1e-5)
    alone = np.zeros(60, dtype=int)
    centroids = unit_centroids(points, alone, 2)
    assert np.isposinf(measures.second_best(points @ centroids.T, alone, centroids)[1]).all()


def test_at_the_doubtful_margin_the_second_probability_is_half_of_the_first():
    margin = measures.doubtful_margin(0.07)
    own, second = math.exp(0.8 / 0.07), math.exp((0.8 - margin) / 0.07)
    assert second / own == pytest.approx(0.5)


@pytest.mark.parametrize("known", [range(2), [3, 1]])
def test_nearest_known_class_leaves_itself_out(clustered, known):
    points, clusters, _ = clustered
    centroids = unit_centroids(points, clusters, 5)
    nearest, value = nearest_known(centroids, known)
    for c in range(4):
        to = {k: cosine(centroid(points, clusters, c), centroid(points, clusters, k)) for k in known if k != c}
        assert nearest[c] == max(to, key=to.__getitem__)
        assert value[c] == pytest.approx(max(to.values()), abs=1e-5)
    assert nearest[4] == -1  # empty
    assert (nearest_known(centroids, [])[0] == -1).all()


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


def test_other_categories_are_compared_without_the_image_itself(clustered):
    points, clusters, _ = clustered
    clusters = clusters.copy()
    clusters[7] = 4  # alone in its cluster: nothing to compare it with
    images = np.array([7, 0, 3, 12, 40, 59])
    others, margins = measures.other_category_margins(points, clusters, 6, images)  # cluster 5 is empty
    for image, other, margin in zip(images, others, margins, strict=True):
        own = clusters[image]
        rest = [points[i] for i in range(60) if clusters[i] == own and i != image]
        if not rest:
            assert (other, margin) == (own, -np.inf)
            continue
        cosines = {c: cosine(points[image], centroid(points, clusters, c)) for c in range(5) if c != own}
        best = max(cosines, key=cosines.get)
        assert other == best
        assert margin == pytest.approx(cosines[best] - cosine(points[image], np.mean(rest, axis=0)), abs=1e-6)
    assert np.isneginf(measures.other_category_margins(points, np.zeros(60, dtype=int), 1, images)[1]).all()


def test_most_planted_wrong_labels_are_found_among_the_first():
    """Real images of the demo in the embeddings of its backbone; 5 % of the labels are wrong."""
    data, random = load_benchmark("mini"), np.random.default_rng(0)
    chosen = np.concatenate([np.flatnonzero(data.classes == c)[:40] for c in range(10)])
    truth = data.classes[chosen]
    vit = PromptedViT("vit_tiny_patch4_32.promptcal", prompts=0, train_blocks=0)
    _, features = embed_images(vit, data.train.subset(chosen), 36, skip_unreadable=False, console=Console(quiet=True))
    labelled = np.flatnonzero((truth < 5) & (random.random(len(truth)) < 0.5))
    planted = random.choice(labelled, len(labelled) // 20, replace=False)
    clusters = truth.copy()  # as if the others were assigned well
    clusters[planted] = (truth[planted] + random.integers(1, 5, len(planted))) % 5
    mask = np.isin(np.arange(len(truth)), labelled)
    assignments = Assignments(
        [str(i) for i in chosen], clusters, np.ones(len(truth)), [str(c) for c in range(10)], [True] * 5 + [False] * 5,
        mask, np.full(len(truth), -1), np.zeros(len(truth)),
    )  # fmt: skip
    names = [str(c) for c in range(5)]
    analysis = ClusterAnalysis(assignments, features.numpy(), names, 0.1, None, np.arange(0))
    found, others, margins = analysis.mislabelled
    assert len(planted) >= 4
    assert len(set(planted) & set(found)) >= 0.75 * len(planted)
    assert len(found) < 0.25 * len(labelled)
    assert (np.diff(margins) <= 0).all()
    first = found[: 2 * len(planted)]
    assert len(set(planted) & set(first)) >= 0.75 * len(planted)
    hits = np.isin(found, planted)
    assert (others[hits] == truth[found[hits]]).mean() > 0.5  # the true class is suggested


def test_sums_by_cluster_are_those_of_numpy_over_several_blocks():
    random = np.random.default_rng(0)
    embeddings, clusters = random.normal(size=(9000, 5)).astype(np.float32), random.integers(0, 6, 9000)
    expected = np.zeros((7, 5))
    np.add.at(expected, clusters, embeddings)
    assert np.allclose(sums_by_cluster(embeddings, clusters, 7), expected, rtol=0, atol=1e-9)
