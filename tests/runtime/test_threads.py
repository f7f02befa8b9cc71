"""One thread for small operations, cores of a container, and idle threads that sleep."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from promptcal.discovery import SemiSupervisedKMeans, kmeans
from promptcal.runtime import threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("n_points", "used"), [(300, 1), (60_000, 2)])
def test_small_kmeans_problems_use_one_thread(two_threads, monkeypatch, n_points, used):
    seen = []
    lloyd = kmeans.lloyd
    monkeypatch.setattr(kmeans, "lloyd", lambda *g, **n: (seen.append(torch.get_num_threads()), lloyd(*g, **n))[1])
    points = np.random.default_rng(0).normal(size=(n_points, 64)).astype(np.float32)
    SemiSupervisedKMeans(30, n_init=1, max_iter=1, random_state=0).fit(points)
    assert set(seen) == {used}
    assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error(two_threads):
    def fail():
        with threads.threads_for(1):
            during.append(torch.get_num_threads())
            raise ZeroDivisionError

    during = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert during == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("content", "expected"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_cores_are_those_of_the_affinity_and_the_container(monkeypatch, tmp_path, content, expected):
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert threads.available_cores() == expected


FIT = """
import sys, warnings
for name in sys.argv[1:]:
    __import__(name)
import numpy as np
import promptcal, torch
torch.set_num_threads(2)
model = promptcal.SemiSupervisedDiscovery(n_classes=2, overrides=("clustering.readout=kmeans",))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        model.fit(np.eye(6, 3) + 1, [1, 2, -1, -1, -1, -1])
print(sum("OMP_WAIT_POLICY=passive" in str(w.message) for w in caught))
"""


@pytest.mark.parametrize(
    ("first", "given", "warned"), [("torch", {}, 1), ("promptcal", {}, 0), ("torch", {"OMP_WAIT_POLICY": "active"}, 0)]
)
def test_a_fit_warns_once_if_pytorch_was_imported_first(first, given, warned):
    """Then idle threads do not sleep, because the variable has no effect any more."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    command = [sys.executable, "-c", FIT, first]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(warned)]


@pytest.mark.parametrize("given", [None, "active"])
def test_idle_threads_sleep_unless_the_user_decides(given):
    """In Python and on the command line: `import promptcal` sets what PyTorch reads when it is loaded."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    program = "import os, sys, promptcal; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", given or "passive"]
