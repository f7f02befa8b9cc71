"""Semi-supervised k-means: against scikit-learn without labels, against hand-made cases with them."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans

from promptcal.discovery import SemiSupervisedKMeans, kmeans_plus_plus, lloyd
from promptcal.discovery import kmeans as module


def blobs(n=300, k=6, dim=5, spread=0.6, seed=0):
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(k, dim)) * 3
    labels = np.arange(n) % k
    return (centres[labels] + spread * generator.normal(size=(n, dim))).astype(np.float32), labels


@pytest.mark.parametrize("seed", range(3))
def test_same_start_ends_where_scikit_learn_ends(seed):
    points, _ = blobs(spread=2.0, seed=seed)
    starts = np.stack([points[np.random.default_rng(s).choice(300, 6, replace=False)] for s in range(4)])
    unlabelled = torch.full((300,), -1)
    labels, centres, inertia, _ = lloyd(torch.from_numpy(points), torch.from_numpy(starts), unlabelled)
    for i, start in enumerate(starts):
        reference = KMeans(6, init=start, n_init=1, max_iter=200, tol=1e-4, algorithm="lloyd").fit(points)
        assert np.array_equal(labels[i].numpy(), reference.labels_)
        assert np.allclose(centres[i].numpy(), reference.cluster_centers_, atol=1e-4)
        assert inertia[i].item() == pytest.approx(reference.inertia_, rel=1e-5)


def test_given_centroids_are_where_the_first_clusters_start():
    X = np.random.default_rng(3).normal(size=(200, 5)).astype(np.float32)
    start = X[[5, 50, 150, 199]]
    ours = SemiSupervisedKMeans(4, tol=0.0).fit(X, init=start)
    theirs = KMeans(4, init=start, n_init=1, max_iter=200, tol=0.0, algorithm="lloyd").fit(X)
    assert np.array_equal(ours.labels_, theirs.labels_)  # the order of the clusters, too
    more = SemiSupervisedKMeans(6, n_init=3, random_state=0).fit(X, init=start)  # two more are drawn
    assert more.cluster_centers_.shape == (6, 5)
    assert more.inertia_ < ours.inertia_


def test_without_labels_reaches_scikit_learns_inertia():
    points, _ = blobs(spread=1.5)
    ours = SemiSupervisedKMeans(6, n_init=30, random_state=0).fit(points)
    reference = KMeans(6, n_init=30, random_state=0).fit(points)
    assert ours.inertia_ == pytest.approx(reference.inertia_, rel=1e-3)
    assert np.array_equal(ours.predict(points), ours.labels_)


def test_inertia_is_the_sum_of_squared_distances():
    points, truth = blobs(spread=2.0)
    y = np.where(np.arange(300) % 5 == 0, truth, -1)
    fitted = SemiSupervisedKMeans(6, n_init=3, random_state=0).fit(points, y)
    by_hand = sum(np.sum((p - fitted.cluster_centers_[c]) ** 2) for p, c in zip(points, fitted.labels_, strict=True))
    assert fitted.inertia_ == pytest.approx(by_hand, rel=1e-4)


def test_labelled_points_stay_with_their_class_and_classes_keep_their_numbers():
    points, truth = blobs(spread=2.5)
    y = np.where((truth < 3) & (np.arange(300) // 6 % 2 == 0), truth, -1)
    y[0] = 2  # a wrong label is honoured too
    fitted = SemiSupervisedKMeans(6, n_init=10, random_state=0).fit(points, y)
    assert np.array_equal(fitted.labels_[y >= 0], y[y >= 0])
    assert fitted.cluster_centers_.shape == (6, 5)


def test_fit_predict_honours_labels_too():
    points, truth = blobs(spread=2.5)
    y = np.where(np.arange(300) < 30, truth, -1)
    estimators = [SemiSupervisedKMeans(6, n_init=2, random_state=0) for _ in range(2)]
    assert np.array_equal(estimators[0].fit_predict(points, y), estimators[1].fit(points, y).labels_)
    assert len(estimators[0].classes_) == 6


def test_class_numbers_need_not_be_consecutive():
    points, truth = blobs(k=3, spread=0.1)
    y = np.where(np.arange(300) % 2 == 0, np.array([40, 7, -1])[truth], -1)
    fitted = SemiSupervisedKMeans(3, n_init=5, random_state=0).fit(points, y)
    assert fitted.classes_.tolist() == [7, 40]
    assert (fitted.labels_[truth == 1] == 0).all()
    assert (fitted.labels_[truth == 0] == 1).all()
    assert (fitted.labels_[truth == 2] == 2).all()


def test_worked_example():
    # class 0 is labelled at 0 and at 10: its centre is 5 and keeps both, the free points pair off
    points = np.array([[0.0], [10.0], [4.0], [20.0], [21.0]])
    fitted = SemiSupervisedKMeans(2, n_init=10, random_state=0).fit(points, [0, 0, -1, -1, -1])
    assert fitted.labels_.tolist() == [0, 0, 0, 1, 1]
    assert fitted.cluster_centers_[:, 0].tolist() == pytest.approx([14 / 3, 20.5])
    assert fitted.inertia_ == pytest.approx((14 / 3) ** 2 + (16 / 3) ** 2 + (2 / 3) ** 2 + 0.5)


def test_all_clusters_known_needs_no_start():
    points, truth = blobs(k=3, spread=0.1)
    y = np.where(np.arange(300) < 30, truth, -1)
    assert np.array_equal(SemiSupervisedKMeans(3).fit(points, y).labels_, truth)


def test_plus_plus_draws_by_squared_distance_to_all_centres():
    # a known centre at 0; points at 1 and 2 have squared distances 1 and 4
    points = torch.tensor([[0.0], [1.0], [2.0]])
    drawn = kmeans_plus_plus(points, torch.zeros(1, 1), 1, 20000, torch.Generator().manual_seed(0))
    assert drawn.shape == (20000, 2, 1)
    assert (drawn[:, 0] == 0).all()
    shares = [(drawn[:, 1, 0] == v).float().mean().item() for v in (0.0, 1.0, 2.0)]
    assert shares == pytest.approx([0.0, 0.2, 0.8], abs=0.015)


def test_plus_plus_starts_uniformly_without_known_centres():
    drawn = kmeans_plus_plus(
        torch.arange(4.0).view(4, 1), torch.zeros(0, 1), 1, 20000, torch.Generator().manual_seed(0)
    )
    shares = torch.bincount(drawn.flatten().long(), minlength=4) / 20000
    assert torch.allclose(shares, torch.full((4,), 0.25), atol=0.015)


def test_an_empty_cluster_is_reseeded_at_the_farthest_free_point():
    points = torch.tensor([[0.0], [0.1], [9.0], [50.0]])
    fixed = torch.tensor([-1, -1, -1, 0])
    start = torch.tensor([[[0.0], [1000.0]]])  # nothing is near the second centre
    labels, centres, _, _ = lloyd(points, start, fixed)
    assert torch.isfinite(centres).all()
    assert sorted(set(labels[0].tolist())) == [0, 1]
    assert labels[0, 3] == 0


@pytest.mark.parametrize("n_clusters", [1, 3, 5])
def test_identical_points_give_no_nan(n_clusters):
    fitted = SemiSupervisedKMeans(n_clusters, n_init=4, random_state=0).fit(np.ones((5, 2)), [0, -1, -1, -1, -1])
    assert np.isfinite(fitted.cluster_centers_).all()
    assert fitted.inertia_ == pytest.approx(0.0, abs=1e-6)
    assert fitted.labels_[0] == 0


def test_same_seed_same_result_other_seed_may_differ():
    points, _ = blobs(spread=3.0, k=12)
    runs = [SemiSupervisedKMeans(12, n_init=1, random_state=s).fit(points) for s in (3, 3, 4)]
    assert np.array_equal(runs[0].labels_, runs[1].labels_)
    assert runs[0].inertia_ != runs[2].inertia_


def test_more_starts_are_never_worse():
    points, _ = blobs(spread=3.0, k=12)
    few, many = (SemiSupervisedKMeans(12, n_init=n, random_state=0).fit(points).inertia_ for n in (1, 50))
    assert many <= few


def test_starts_side_by_side_do_what_each_does_alone():
    points, truth = blobs(spread=3.0, k=12)
    tensor = torch.from_numpy(points)
    fixed = torch.from_numpy(np.where((truth < 3) & (np.arange(len(truth)) % 2 == 0), truth, -1))
    known = torch.stack([tensor[fixed == c].mean(dim=0) for c in range(3)])
    centres = kmeans_plus_plus(tensor[fixed < 0], known, 9, 5, torch.Generator().manual_seed(0))
    together = lloyd(tensor, centres, fixed)
    for i in range(5):
        labels, moved, inertia, iterations = lloyd(tensor, centres[i : i + 1], fixed)
        assert torch.equal(labels[0], together[0][i])
        assert torch.allclose(moved[0], together[1][i], atol=1e-5)
        assert float(inertia[0]) == pytest.approx(float(together[2][i]), rel=1e-5)
        assert int(iterations[0]) == int(together[3][i])


def test_tensors_and_arrays_give_the_same():
    points, truth = blobs()
    y = np.where(truth < 2, truth, -1)
    a = SemiSupervisedKMeans(6, n_init=2, random_state=0).fit(points, y)
    b = SemiSupervisedKMeans(6, n_init=2, random_state=0).fit(torch.from_numpy(points), torch.from_numpy(y))
    assert np.array_equal(a.labels_, b.labels_)


@pytest.mark.parametrize(
    ("y", "n_clusters", "message"),
    [
        ([0, 1, 2, -1], 2, "3 labelled classes"),
        ([0, 0, 0, -1], 3, "2 new clusters"),
        ([0, 1], 2, "one entry per point"),
    ],
)
def test_impossible_requests_say_why(y, n_clusters, message):
    with pytest.raises(ValueError, match=message):
        SemiSupervisedKMeans(n_clusters).fit(np.arange(8.0).reshape(4, 2), y)


def test_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        SemiSupervisedKMeans(1).fit([[np.nan]])


def test_follows_scikit_learns_parameter_protocol():
    original = SemiSupervisedKMeans(4, n_init=7)
    assert clone(original).get_params() == original.get_params()


def test_a_common_offset_makes_no_difference():
    points, truth = blobs()
    y = np.where((truth < 2) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    here = SemiSupervisedKMeans(6, n_init=5, random_state=0).fit(points, y)
    there = SemiSupervisedKMeans(6, n_init=5, random_state=0).fit(points + np.float32(1000), y)
    assert np.array_equal(here.labels_, there.labels_)
    assert there.inertia_ == pytest.approx(here.inertia_, rel=1e-3)
    np.testing.assert_allclose(there.cluster_centers_ - 1000, here.cluster_centers_, atol=1e-2)
    assert np.array_equal(there.predict(points + np.float32(1000)), here.predict(points))


def test_at_least_one_start_is_needed():
    with pytest.raises(ValueError, match="n_init must be at least 1"):
        SemiSupervisedKMeans(2, n_init=0).fit(np.eye(4))


@pytest.mark.parametrize("seed", range(2))
def test_block_by_block_it_ends_where_it_ends_at_once(monkeypatch, seed):
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 200)
    points, truth = blobs(spread=2.0, seed=seed)
    fixed = torch.from_numpy(np.where((truth < 2) & (np.arange(300) % 3 == 0), truth, -1))
    limits = module.Limits(torch.arange(300) % 7 == 0, 4, torch.arange(6) == 0)
    centred = torch.from_numpy(points) + 5
    offset = centred.mean(dim=0)
    start = centred[:6] - offset
    expected = lloyd(centred - offset, start.unsqueeze(0), fixed, limits=limits, tol=0.0)
    inertia, centroids, labels, _ = module.lloyd_in_blocks(
        centred, offset, start, fixed, max_iter=200, tol=0.0, limits=limits
    )
    assert torch.equal(labels, expected[0][0])
    assert torch.allclose(centroids, expected[1][0], atol=1e-4)
    assert inertia == pytest.approx(expected[2].item(), rel=1e-5)


def test_starts_that_are_searched_on_a_part_are_as_good(monkeypatch):
    monkeypatch.setattr(module, "_MIN_PART", 100)
    monkeypatch.setattr(module, "_COMPONENTS", 4)
    points, truth = blobs(n=1200, k=8, dim=12, spread=1.0, seed=1)
    labels = np.where((truth < 3) & (np.arange(1200) // 8 % 5 == 0), truth, -1)
    labels[truth == 2] = -1
    labels[np.flatnonzero(truth == 2)[0]] = 2  # the only label of its class need not be in the part
    whole = SemiSupervisedKMeans(8, n_init=20, random_state=0).fit(points, labels)
    part = SemiSupervisedKMeans(8, n_init=20, random_state=0, n_kept=3, max_points_per_cluster=20).fit(points, labels)
    assert part.inertia_ == pytest.approx(whole.inertia_, rel=0.01)
    assert np.array_equal(part.labels_[labels >= 0], labels[labels >= 0])
    assert part.kept_centers_.shape == (3, 8, 12)
    nearest = ((points[:, None] - part.cluster_centers_) ** 2).sum(axis=2).argmin(axis=1)
    assert np.array_equal(part.labels_[labels < 0], nearest[labels < 0])
    assert np.array_equal(part.predict(points), nearest)
    again = SemiSupervisedKMeans(8, n_init=20, random_state=0, max_points_per_cluster=20).fit(points, labels)
    assert np.array_equal(again.labels_, part.labels_)


def test_sums_of_clusters_leave_out_points_without_one(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 30)
    points, clusters = torch.randn(40, 3), torch.arange(40) % 5 - 1
    sums, sizes = module.cluster_sums(points, clusters, 6)
    for c in range(6):
        members = [points[i] for i in range(40) if clusters[i] == c]
        assert sizes[c] == len(members)
        assert torch.allclose(sums[c], sum(members, torch.zeros(3)), atol=1e-5)


def test_many_points_are_compared_with_all_centroids_a_limited_number_of_times(monkeypatch):
    """Clusters that overlap converge slowly. The starts are searched on a part, and the last iterations are limited."""
    for name, value in (("_MIN_PART", 100), ("_BLOCK_ELEMENTS", 20_000), ("_COMPONENTS", 8)):
        monkeypatch.setattr(module, name, value)
    n, k = 20_000, 10
    points, truth = blobs(n=n, k=k, dim=24, spread=8.0)
    labels = np.where((truth < 5) & (np.arange(n) // k % 2 == 0), truth, -1)
    compared = []
    distances = module._relative_distances
    monkeypatch.setattr(
        module, "_relative_distances", lambda rows, centroids: compared.append(len(rows)) or distances(rows, centroids)
    )
    found = SemiSupervisedKMeans(k, n_init=5, random_state=0, max_points_per_cluster=20).fit(points, labels)
    assert found.n_iter_ == module._LAST_ITERATIONS == 20  # it has not converged
    assert sum(compared) < (module._LAST_ITERATIONS + 3) * n
    start = torch.from_numpy(found.cluster_centers_).unsqueeze(0)
    converged = lloyd(torch.from_numpy(points), start, torch.from_numpy(labels), max_iter=300, tol=0.0)
    assert found.inertia_ == pytest.approx(converged[2].item(), rel=1e-3)
