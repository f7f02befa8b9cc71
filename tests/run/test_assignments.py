"""The table of assignments."""

import tracemalloc

import numpy as np

from promptcal.run import Assignments
from promptcal.run import assignments as module

N = 20_000


def table_of(n):
    random = np.random.default_rng(0)
    clusters, second = random.integers(3, size=n), random.integers(-1, 3, size=n)
    return Assignments(
        [f"photographs/number {i:06d}.jpg" for i in range(n)],
        clusters,
        random.random(n),
        ["a", "b, c", "d"],
        [True, False, False],
        random.random(n) < 0.5,
        second,
        np.where(second < 0, 0, random.random(n)),
        stability=random.random(n),
    )


def test_rows_are_written_in_parts_that_no_reader_notices(monkeypatch, tmp_path):
    found = table_of(100)
    whole = found.to_csv()
    monkeypatch.setattr(module, "_BLOCK", 7)
    found.write_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == found.to_csv() == whole
    read = Assignments.read_csv(tmp_path / "a.csv", found.names, found.known)
    assert read.paths == found.paths
    assert np.array_equal(read.clusters, found.clusters)
    assert np.array_equal(read.second, found.second)
    assert np.allclose(read.stability, found.stability, atol=1e-4)


def test_writing_many_rows_needs_little_memory(tmp_path):
    found = table_of(N)
    tracemalloc.start()
    found.write_csv(tmp_path / "a.csv")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "a.csv").stat().st_size > 60 * N
    assert peak < 150 * N  # bytes; if all cells were text at once: 360
