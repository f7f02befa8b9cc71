"""Discovery accuracy on hand-computed examples and against all possible matchings."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, confusion_matrix, normalized_mutual_info_score

from promptcal.metrics import contingency_table, discovery_accuracy, match_clusters


def test_worked_example():
    # cluster 5 -> a (3 of 4), cluster 2 -> c (2 of 3), cluster 9 -> b (1 of 1)
    truth = np.array(["a", "a", "a", "b", "b", "c", "c", "b"])
    clusters = np.array([5, 5, 5, 5, 2, 2, 2, 9])
    accuracy = discovery_accuracy(truth, clusters, ["a", "b"])
    assert match_clusters(truth, clusters) == {5: "a", 2: "c", 9: "b"}
    assert accuracy.all == 6 / 8
    assert accuracy.known == 4 / 6
    assert accuracy.new == 2 / 2


def test_a_notebook_shows_rounded_accuracies():
    pytest.importorskip("pandas")
    accuracy = discovery_accuracy(np.array(["a", "a", "b"]), np.array([0, 1, 1]), ["a", "b"])
    assert repr(accuracy).startswith("DiscoveryAccuracy(all=0.667, known=0.667, new=nan, ")
    assert "<td>all</td><td>0.667</td>" in accuracy._repr_html_()
    assert accuracy.to_pandas()["all"].tolist() == [2 / 3]


def test_separate_matchings_are_more_lenient():
    # one cluster holds all points: a joint matching makes it one class, separate matchings make it one per part
    truth, clusters = [0, 0, 0, 1, 1], [4, 4, 4, 4, 4]
    accuracy = discovery_accuracy(truth, clusters, [0])
    assert (accuracy.all, accuracy.known, accuracy.new) == (0.6, 1.0, 0.0)
    assert (accuracy.separate_all, accuracy.separate_known, accuracy.separate_new) == (1.0, 1.0, 1.0)


def test_nmi_and_ari_are_those_of_scikit_learn():
    generator = np.random.default_rng(1)
    truth = np.array(["a", "b", "c"])[generator.integers(3, size=40)]
    clusters = np.where(generator.random(40) < 0.6, np.unique(truth, return_inverse=True)[1], 0.5)  # of any type
    accuracy = discovery_accuracy(truth, clusters, ["a"])
    names = clusters.astype(str)
    assert accuracy.nmi == pytest.approx(normalized_mutual_info_score(truth, names))
    assert accuracy.ari == pytest.approx(adjusted_rand_score(truth, names))
    assert np.isnan(discovery_accuracy([], [], []).nmi)
    assert np.isnan(discovery_accuracy([], [], []).ari)


def best_by_trying_all(truth, clusters):
    classes, found = sorted(set(truth)), sorted(set(clusters))
    padded = classes + [None] * max(0, len(found) - len(classes))
    return max(
        sum(dict(zip(found, order, strict=False)).get(c) == t for t, c in zip(truth, clusters, strict=True))
        for order in itertools.permutations(padded, len(found))
    ) / len(truth)


@pytest.mark.parametrize(("n_classes", "n_clusters"), [(4, 4), (3, 5), (5, 3)])
def test_is_the_best_of_all_matchings(n_classes, n_clusters):
    generator = np.random.default_rng(0)
    for _ in range(5):
        truth = generator.integers(n_classes, size=30)
        clusters = generator.integers(n_clusters, size=30)
        found = discovery_accuracy(truth, clusters, range(2))
        assert found.all == pytest.approx(best_by_trying_all(truth.tolist(), clusters.tolist()))
        known = truth < 2
        assert found.separate_known == pytest.approx(
            best_by_trying_all(truth[known].tolist(), clusters[known].tolist())
        )
        assert found.all == pytest.approx(known.mean() * found.known + (~known).mean() * found.new)


def test_a_part_without_points_is_nan():
    accuracy = discovery_accuracy([0, 1], [0, 1], [0, 1])
    assert accuracy.all == 1.0
    assert np.isnan(accuracy.new)
    assert np.isnan(discovery_accuracy([], [], [0]).all)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="equal length"):
        discovery_accuracy([0, 1], [0], [0])


def test_contingency_table_equals_scikit_learn_without_missing_pairs():
    rows, columns = (np.random.default_rng(seed).integers(-1, 5, size=60) for seed in (0, 1))
    both = (rows >= 0) & (columns >= 0)
    expected = confusion_matrix(rows[both], columns[both], labels=range(7))[:6]  # without any 5 or 6
    assert np.array_equal(contingency_table(rows, columns, 6, 7), expected)
