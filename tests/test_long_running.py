"""One process that works for a long time keeps its memory, and several processes can use one run at once."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from promptcal import api

pytestmark = pytest.mark.slow


def resident_megabytes():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def slope(values):
    """Megabytes that each repetition adds, by Theil and Sen (the median of all slopes), without the first quarter."""
    kept = np.array(values[len(values) // 4 :])
    first, second = np.triu_indices(len(kept), k=1)
    return float(np.median((kept[second] - kept[first]) / (second - first)))


@pytest.fixture(scope="module")
def arguments(small_set, quick_settings):
    overrides = (*quick_settings, "warmup.epochs=1", "affinity.epochs=1", "clustering.n_init=2")
    images, _, labels = small_set
    given = {"images": images[::2], "labels": np.where(np.arange(24) % 3, -1, labels[::2]), "n_classes": 4}
    return {**given, "overrides": overrides, "progress": False}


@pytest.fixture(scope="module")
def run(arguments, tmp_path_factory):
    return api.fit(**arguments, output=tmp_path_factory.mktemp("long") / "run").path


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.timeout(3600)
def test_200_fits_in_one_process(arguments, tmp_path):
    memory, threads, opened = [], [], []
    for i in range(200):
        api.fit(**arguments, output=tmp_path / "run", overwrite=i > 0, report=i % 20 == 0)
        memory.append(resident_megabytes())
        threads.append(threading.active_count())
        opened.append(open_files())
    print(f"{slope(memory):.3f} MB a fit, from {memory[50]:.0f} to {memory[-1]:.0f} MB; {threads[-1]} threads")
    assert slope(memory) < 0.25
    assert threads[-1] <= threads[20]
    assert opened[-1] <= opened[20]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.timeout(3600)
def test_2000_predictions_in_one_process(run, small_set):
    memory, opened = [], []
    expected = api.predict(run=run, images=small_set[0][:2], progress=False).to_csv()
    for i in range(2000):
        found = api.predict(run=run, images=small_set[0][:2], progress=False)
        memory.append(resident_megabytes() if i % 10 == 0 else memory[-1])
        opened.append(open_files())
        assert found.to_csv() == expected
    print(f"{slope(memory):.4f} MB a prediction, from {memory[500]:.0f} to {memory[-1]:.0f} MB")
    assert slope(memory) < 0.002
    assert opened[-1] <= opened[100]


def test_four_processes_predict_with_one_run_at_once(run, small_folder, tmp_path):
    outputs = [tmp_path / f"{i}.csv" for i in range(4)]
    command = [sys.executable, "-m", "promptcal", "predict", run, small_folder, "--quiet", "--output"]
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    processes = [subprocess.Popen([*command, output], stderr=subprocess.PIPE, text=True) for output in outputs]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert len({output.read_text() for output in outputs}) == 1
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before  # nothing was written to the run
