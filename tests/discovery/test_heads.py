"""The trained read-out against loops and SciPy: its gradient, its neighbours, its agreement, and what it finds."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy
from sklearn.neighbors import NearestNeighbors

from promptcal.discovery import heads
from promptcal.discovery.heads import LinearHead, TrainedHeads
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.sampling import sample_rows


def distributions(n, k, seed):
    return torch.softmax(3 * torch.randn(n, k, generator=torch.Generator().manual_seed(seed)), dim=1)


def unit_points(n, dim, seed=0):
    return torch.nn.functional.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def groups(sizes, dim=12, noise=0.25, seed=0):
    """Points around random directions, and the number of the direction of each."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(len(sizes), dim, generator=generator), dim=1)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    points = directions[torch.from_numpy(truth)] + noise * torch.randn(len(truth), dim, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), truth


def test_neighbours_are_those_of_scikit_learn(monkeypatch):
    monkeypatch.setattr(heads, "_BLOCK", 7)
    points = unit_points(40, 5)
    expected = NearestNeighbors(n_neighbors=5).fit(points.numpy()).kneighbors(return_distance=False)
    found = heads.nearest_neighbours(points, 4)
    assert [set(row) for row in found.tolist()] == [set(row[:4]) for row in expected.tolist()]


def objective(weight, bias, points, labels, batch, pairs, sharpness, entropy_weight, prior, unlabelled_weight):
    """The formula of the module for one head, image by image, in double precision."""
    p = torch.softmax(sharpness * points @ weight.T + bias, dim=1)

    def entropy(q):
        return -(q * q.log()).sum()

    own = [-0.5 * p[i, labels[i]].log() for i in batch if labels[i] >= 0]
    free = [entropy_weight * entropy(p[i]) for i in batch if labels[i] < 0]
    loss = sum(own) / max(1, len(own)) + sum(free) / max(1, len(free))
    shares = [unlabelled_weight if labels[i] < 0 else 1.0 for i in batch]
    shares = [share / sum(shares) for share in shares]
    if prior is not None:
        mean = sum(share * p[i] for share, i in zip(shares, batch, strict=True))
        loss = loss + (mean * (mean / prior).log()).sum()
    for share, i, j in zip(shares, batch, pairs, strict=True):
        if labels[i] < 0 or labels[j] < 0 or labels[i] == labels[j]:
            loss = loss + share * (entropy((p[i] + p[j]) / 2) - (entropy(p[i]) + entropy(p[j])) / 2)
    return loss


def test_the_objective_of_these_tests_is_that_of_scipy():
    points, labels = unit_points(5, 4).double(), [0, -1, 1, -1, 1]
    weight, bias = unit_points(3, 4, seed=3).double(), torch.tensor([0.1, -0.2, 0.3]).double()
    prior, pairs = np.array([0.5, 0.3, 0.2]), [2, 0, 4, 1, 3]
    found = objective(weight, bias, points, labels, range(5), pairs, 7.0, 0.3, torch.from_numpy(prior), 3.0)
    outputs = 7 * points.numpy() @ weight.numpy().T + bias.numpy()
    p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    shares = np.array([1, 3, 1, 3, 1]) / 9
    expected = np.mean([-0.5 * math.log(p[i, labels[i]]) for i in (0, 2, 4)])
    expected += np.mean([0.3 * scipy_entropy(p[i]) for i in (1, 3)]) + scipy_entropy(shares @ p, prior)
    expected += sum(shares[i] * jensenshannon(p[i], p[pairs[i]]) ** 2 for i in (1, 2, 3, 4))  # image 0: another class
    assert float(found) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("heads_at_once", [1, 2, 3])
@pytest.mark.parametrize("unlabelled_weight", [1.0, 3.0])
@pytest.mark.parametrize("has_prior", [True, False])
def test_the_gradient_is_that_of_the_objective(monkeypatch, has_prior, unlabelled_weight, heads_at_once):
    """By automatic differentiation; with labelled and unlabelled images, and with only one kind of them."""
    monkeypatch.setattr(heads, "_CACHED_OUTPUTS", heads_at_once * 30 * 5)
    points, k = unit_points(60, 8), 5
    labels = torch.tensor([0, -1, 1, -1, -1, 2] * 10)
    prior = torch.tensor([0.4, 0.2, 0.2, 0.1, 0.1]) if has_prior else None
    starts = unit_points(3 * k, 8, seed=3).view(3, k, 8)
    image_weights = torch.where(labels < 0, unlabelled_weight, 1.0)
    found = heads._Heads(points, labels, torch.empty(60, 0), starts, prior, image_weights)
    with torch.no_grad():
        found.bias += torch.randn(3, k, generator=torch.Generator().manual_seed(4))
    batch, pairs = torch.arange(0, 60, 2), torch.arange(59, 0, -2)
    for images in (batch, batch[labels[batch] < 0], batch[labels[batch] >= 0]):
        neighbours = pairs[: len(images)]
        by_weight, by_bias = found._gradients(images, neighbours, 9.0, 0.2)
        for s in range(3):
            weight, bias = (rows[s].detach().double().requires_grad_() for rows in (found.weight, found.bias))
            expected_prior = None if prior is None else prior.double()
            given = points.double(), labels.tolist(), images.tolist(), neighbours.tolist()
            objective(weight, bias, *given, 9.0, 0.2, expected_prior, unlabelled_weight).backward()
            assert torch.allclose(by_weight[s].double(), weight.grad, atol=1e-5)
            assert torch.allclose(by_bias[s].double(), bias.grad, atol=1e-6)


def test_neighbours_that_are_searched_by_cluster_are_nearly_all_found(monkeypatch):
    points, truth = groups([40] * 30, noise=0.15)
    centroids = torch.stack([points[torch.from_numpy(truth == c)].mean(dim=0) for c in range(30)])
    exact = heads.nearest_neighbours(points, 10)
    found = heads.neighbours_by_cluster(points, 10, centroids)
    shared = [len(set(a) & set(b)) / 10 for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(shared) > 0.95
    assert all(i not in row for i, row in enumerate(found.tolist()))
    monkeypatch.setattr(heads, "_PROBES", 30)
    monkeypatch.setattr(heads, "_MOST_COSINES", 5000)
    whole = heads.neighbours_by_cluster(points, 10, centroids)
    assert [set(row) for row in whole.tolist()] == [set(row) for row in exact.tolist()]


def renamed_by_brute_force(clusters, like, k):
    """The best of all orders of k clusters, and the largest number of images that agree."""
    order = max(permutations(range(k)), key=lambda order: sum(np.array(order)[clusters] == like))
    return np.array(order)[clusters]


def noisy(truth, share, k, generator):
    """A clustering with other numbers, and with random clusters for some images."""
    return generator.permutation(k)[
        np.where(generator.random(len(truth)) < share, truth, generator.integers(0, k, len(truth)))
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_most_voted_clusters_are_those_of_a_loop(seed):
    generator = np.random.default_rng(seed)
    k, truth = 4, np.repeat(np.arange(4), 15)
    clusterings = [noisy(truth, 0.7, k, generator) for _ in range(5)]
    means = [sum(np.mean(renamed_by_brute_force(other, own, k) == own) for other in clusterings) for own in clusterings]
    first = int(np.argmax(means))
    ordered = [clusterings[first], *clusterings[:first], *clusterings[first + 1 :]]
    expected = ordered[0]
    for _ in range(10):
        renamed = [renamed_by_brute_force(own, expected, k) for own in ordered]
        votes = [[own[i] for own in renamed] for i in range(len(truth))]
        expected = np.array([max(row, key=lambda c, row=row: (row.count(c), -row.index(c))) for row in votes])
    found = heads.most_voted(clusterings, k)
    assert found.tolist() == expected.tolist()
    right = max(np.mean(renamed_by_brute_force(own, truth, k) == truth) for own in clusterings)
    assert np.mean(renamed_by_brute_force(found, truth, k) == truth) > right


def test_no_clustering_votes_for_a_closed_cluster():
    """Two of three clusterings use one cluster more than the most agreed one. Its number is closed."""
    generator = np.random.default_rng(0)
    truth = np.repeat([0, 2, 3], 20)
    clusterings = [np.where(generator.random(60) < 0.9, truth, generator.choice([0, 2, 3, 4], 60)) for _ in range(3)]
    closed = torch.tensor([False, True, False, False, False])
    assert 1 not in heads.most_voted(clusterings, 5, closed)


def test_one_or_two_clusterings_are_not_changed():
    first, second = np.array([0, 1, 2, 0]), np.array([1, 1, 2, 0])
    assert heads.most_voted([first], 3).tolist() == first.tolist()
    assert heads.most_voted([first, second], 3).tolist() == first.tolist()


def test_the_last_head_gives_the_clusters_with_most_votes(monkeypatch):
    """Also where these are not those of the heads, and with the labels and the expected sizes of renumbered classes."""
    points, truth = groups([60, 40, 20], noise=0.15)
    labels = np.full(len(truth), -1)
    labels[[0, 1]], labels[[60, 61]] = 0, 1
    given = np.array([2, 0, 1])[truth]  # the cluster of each image, in the numbers of the heads
    monkeypatch.setattr(heads, "most_voted", lambda *others: given)
    sizes = torch.tensor([40.0, 20.0, 60.0]) / 120
    starts = torch.stack([points[i : i + 3] for i in range(3)])
    found = heads.train_heads(points, labels, starts, prior=sizes, seed=0)
    assert (found.clusters == truth).mean() > 0.97
    assert (found.head.outputs(points).argmax(dim=1).numpy() == found.clusters).all()


def test_a_closed_cluster_stays_closed():
    points, _ = groups([20] * 4, noise=0.3)
    closed = torch.tensor([False, True, False, False])
    starts = torch.stack([points[i::17][:4] for i in range(5)])
    found = heads.train_heads(points, np.full(80, -1), starts, prior=None, seed=0, steps=20, closed=closed)
    assert set(found.clusters) == {0, 2, 3}


def test_stability_is_the_share_of_the_heads_that_agree(monkeypatch):
    points, truth = groups([20] * 4, noise=0.4)
    labels = np.where((np.arange(len(truth)) % 4 == 0) & (truth < 2), truth, -1)
    of_heads = []
    count = heads.most_voted

    def most_voted(clusters, *others):
        of_heads.extend(clusters)
        return count(clusters, *others)

    monkeypatch.setattr(heads, "most_voted", most_voted)
    starts = torch.stack([points[i::17][:4] for i in range(5)])
    found = heads.train_heads(points, labels, starts, prior=None, seed=0, steps=20)
    assert len(of_heads) == 5
    expected = np.mean([renamed_by_brute_force(own, found.clusters, 4) == found.clusters for own in of_heads], axis=0)
    assert found.stability == pytest.approx(expected)
    assert 0.3 < expected.mean() < 1


def test_a_head_keeps_its_outputs_when_clusters_are_reordered():
    head = LinearHead(torch.randn(4, 3), torch.randn(4))
    points, order = unit_points(6, 3), torch.tensor([2, 0, 3, 1])
    assert torch.equal(head.reordered(order).outputs(points), head.outputs(points)[:, order])


def fit(points, labels, n_clusters, prior="balanced", n_init=10, seed=0, **options) -> TrainedHeads:
    kmeans = SemiSupervisedKMeans(n_clusters, n_init, random_state=seed, n_kept=heads.HEADS).fit(points, labels)
    given = {
        "balanced": torch.full((n_clusters,), 1 / n_clusters),
        "estimated": heads.estimated_sizes(kmeans.labels_, n_clusters),
        "none": None,
    }
    starts = torch.from_numpy(kmeans.kept_centers_)
    return heads.train_heads(points, labels, starts, prior=given[prior], seed=seed, **options)


def matched_share(truth, clusters):
    from promptcal.metrics import discovery_accuracy

    return discovery_accuracy(truth, clusters, [0, 1, 2]).all


def test_known_and_new_groups_are_found():
    points, truth = groups([30] * 6)
    labels = np.where((np.arange(len(truth)) % 3 == 0) & (truth < 3), truth, -1)
    steps = []
    found = fit(points, labels, 6, on_progress=steps.append)
    assert steps == list(range(1, heads.STEPS + 1))
    assert matched_share(truth, found.clusters) > 0.95
    assert (found.clusters[labels >= 0] == labels[labels >= 0]).mean() > 0.95
    assert found.head.outputs(points).argmax(dim=1).tolist() == found.clusters.tolist()
    assert found.stability.min() >= 0
    assert found.stability.mean() > 0.9


def test_heads_that_agree_outvote_the_others():
    """Two starts are at the groups, two others have all their centroids in one or two of them."""
    points, truth = groups([30] * 6, noise=0.2)
    good = torch.stack([points[torch.from_numpy(truth == c)].mean(dim=0) for c in range(6)])
    starts = torch.stack([points[:6], good, points[6:12], good.flip(0)])
    labels = np.full(len(truth), -1)
    found = heads.train_heads(points, labels, starts, prior=torch.full((6,), 1 / 6), seed=0, annealed=False)
    assert matched_share(truth, found.clusters) > 0.95
    assert found.stability.mean() > 1 / 3


def test_a_class_is_the_cluster_of_the_neighbours_of_its_labelled_images():
    """Cluster 0 has no neighbour of class 0. Class 1 has no majority elsewhere, but class 2 takes its cluster."""
    clusters = np.array([3, 3, 3, 1, 2, 1, 1, 1, 0, 0])
    labels = np.array([-1, -1, -1, -1, -1, -1, -1, 2, 1, 0])
    neighbours = np.zeros((10, 4), dtype=np.int64)
    neighbours[9] = [0, 1, 4, 7]  # of class 0: clusters 3, 3, 2, and an image with a label
    neighbours[8] = [3, 4, 0, 2]  # of class 1: clusters 1, 2, 3, 3
    neighbours[7] = [3, 5, 6, 4]  # of class 2: clusters 1, 1, 1, 2
    assert heads.class_order(clusters, labels, neighbours, 4).tolist()[:3] == [3, 2, 1]
    assert sorted(heads.class_order(clusters, labels, neighbours, 4)) == [0, 1, 2, 3]
    neighbours[[7, 9]] = neighbours[8]  # no majority anywhere: every class keeps its cluster
    assert heads.class_order(clusters, labels, neighbours, 4).tolist() == [0, 1, 2, 3]
    assert heads.class_order(clusters, np.full(10, -1), neighbours, 4).tolist() == [0, 1, 2, 3]


def test_a_few_labels_that_were_learned_by_heart_do_not_name_other_images():
    """Both labelled images of class 1 start in the group of class 2. The clusters are right, so only names change."""
    points, truth = groups([60] * 3, noise=0.1)
    labels = np.full(len(truth), -1)
    labels[[0, 1]], labels[[60, 61]] = 0, 1
    means = torch.stack([points[torch.from_numpy(truth == c)].mean(dim=0) for c in range(3)])
    starts = means[[0, 2, 1]].unsqueeze(0)
    found = heads.train_heads(points, labels, starts, prior=torch.full((3,), 1 / 3), seed=0)
    assert (found.clusters == truth).mean() > 0.95
    assert (found.head.outputs(points).argmax(dim=1).numpy() == found.clusters).all()


def test_many_heads_are_trained_in_groups(monkeypatch):
    """The first group is trained as if it were alone, and progress counts the steps of all groups once."""
    points, truth = groups([20] * 4)
    labels = np.where(np.arange(len(truth)) % 4 == 0, truth, -1)
    starts = torch.stack([points[i : i + 4] for i in range(3)])
    of_heads = []
    monkeypatch.setattr(heads, "_MOST_OUTPUTS", 1)
    monkeypatch.setattr(heads, "most_voted", lambda clusters, *others: of_heads.append(clusters) or clusters[0])
    steps = []
    heads.train_heads(points, labels, starts[:1], prior=None, seed=0, steps=20)
    heads.train_heads(points, labels, starts, prior=None, seed=0, steps=20, on_progress=steps.append)
    assert np.array_equal(of_heads[0][0], of_heads[1][0])
    assert len(of_heads[1]) == 3
    assert steps == sorted(steps)
    assert (len(steps), steps[-1]) == (60, 20)


def test_the_same_seed_gives_the_same_heads():
    points, truth = groups([20] * 4)
    labels = np.where(np.arange(len(truth)) % 4 == 0, truth, -1)
    first, second, other = (fit(points, labels, 4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_estimated_sizes_fit_unequal_groups_better_than_equal_ones():
    """A group of 300 next to groups of 15: equal sizes would divide the large one."""
    points, truth = groups([300, 15, 15, 15, 15], noise=0.25)
    labels = np.where(np.arange(len(truth)) % 5 == 0, truth, -1)
    labels[truth > 2] = -1
    shares = {
        prior: matched_share(truth, fit(points, labels, 5, prior).clusters) for prior in ("balanced", "estimated")
    }
    assert shares["estimated"] > shares["balanced"] + 0.1
    assert shares["estimated"] > 0.75
    assert heads.estimated_sizes(np.array([0, 0, 2]), 3).tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])


def test_a_part_of_many_images_is_enough():
    points, truth = groups([100] * 4)
    labels = np.where((np.arange(len(truth)) % 2 == 0) & (truth < 2), truth, -1)
    found = fit(points, labels, 4, most_images=80)
    assert matched_share(truth, found.clusters) > 0.95
    chosen = sample_rows(labels, 80, torch.Generator().manual_seed(0)).numpy()
    assert len(chosen) == len(np.unique(chosen)) == 80
    assert (labels[chosen] >= 0).sum() == 40
    few = np.where(np.arange(400) < 10, 0, -1)
    assert (few[sample_rows(few, 80, torch.Generator())] >= 0).sum() == 10


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (3, 3)])
def test_few_images(n, k):
    points = unit_points(n, 3)
    found = heads.train_heads(points, np.full(n, -1), points[:k].unsqueeze(0), prior=None, seed=0)
    assert found.clusters.shape == (n,)
    assert found.clusters.max() < k
