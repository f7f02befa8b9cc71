"""The silhouette against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from promptcal.metrics import silhouette


@pytest.mark.parametrize("block", [7, 2048])
@pytest.mark.parametrize("n_clusters", [2, 5])
def test_equals_scikit_learn(block, n_clusters):
    generator = np.random.default_rng(n_clusters)
    labels = generator.integers(n_clusters, size=60) * 3 + 1
    labels[0] = 99  # the only point of a cluster counts as 0
    points = generator.normal(size=(60, 4)) + labels[:, None] * 0.3
    points[1] = points[2]
    found = silhouette(torch.from_numpy(points), torch.from_numpy(labels), block=block)
    assert found == pytest.approx(silhouette_score(points, labels), abs=1e-5)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_is_nan_for_one_cluster_or_only_single_points(labels):
    assert np.isnan(silhouette(torch.randn(3, 2), torch.tensor(labels)))


def test_identical_points_give_zero_not_nan():
    assert silhouette(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])) == 0.0
