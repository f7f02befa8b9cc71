"""The map: the same for the same seed, neighbours together, and valid for few images."""

import numpy as np
import pytest

from promptcal.report.array_files import write_arrays
from promptcal.report.embedding_map import N_ITERATIONS, compute_map, read_map


def test_the_same_seed_gives_the_same_map_and_groups_stay_together():
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 30)
    points = np.eye(4, 60)[groups] + 0.05 * random.normal(size=(120, 60))
    done = []
    found = compute_map(points.astype(np.float32), seed=3, on_progress=done.append)
    assert np.array_equal(found, compute_map(points.astype(np.float32), seed=3))
    assert np.abs(found).max() == pytest.approx(1)
    assert done == sorted(done)
    assert done[-1] == N_ITERATIONS
    distances = np.linalg.norm(found[:, None] - found[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert (groups[distances.argmin(axis=1)] == groups).all()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30, 48])
def test_few_images_have_different_coordinates(n):
    points = np.random.default_rng(0).normal(size=(n, 12)).astype(np.float32)
    found = compute_map(points)
    assert found.shape == (n, 2)
    assert np.isfinite(found).all()
    assert len(np.unique(found.round(4), axis=0)) == n


def test_a_stored_map_is_read_for_the_same_images_only(tmp_path):
    embeddings = tmp_path / "embeddings.npy"
    embeddings.write_bytes(b"")
    write_arrays(tmp_path / "map.npz", images=np.array([3, 1]), coordinates=np.ones((2, 2)))
    assert np.array_equal(read_map(tmp_path / "map.npz", np.array([3, 1]), embeddings), np.ones((2, 2)))
    assert read_map(tmp_path / "map.npz", np.array([3, 2]), embeddings) is None
    assert read_map(tmp_path / "other.npz", np.array([3, 1]), embeddings) is None
