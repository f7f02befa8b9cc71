"""The engine ray: the same files as the engine local, on a local Ray, on two nodes, and after a worker was killed."""

import errno
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from shard_helpers import BACKBONE, write_tar

from promptcal import api
from promptcal.data import ImageSet
from promptcal.data.sources import ImageSource
from promptcal.errors import TryAgainError
from promptcal.runtime import files
from promptcal.shards.decoders import CropSize
from promptcal.shards.engines.ray_engine import RayDecoders
from promptcal.shards.shard_sources import ImageChunk

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'promptcal[ray]'")


@pytest.fixture
def many_tars(tars, pictures):
    for i in range(2, 12):
        write_tar(tars / f"{i:02d}.tar", {f"{i}-{name}": content for name, content in pictures.items()})
    return tars


def manifest_of(tars, output, **options):
    api.embed(source=tars, backbone=BACKBONE, output=output, progress=False, **options)
    return json.loads((output / "manifest.json").read_text())


@pytest.fixture
def small_ray():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    yield
    ray.shutdown()


def test_ray_writes_the_same_files(small_ray, tars, tmp_path):
    expected = manifest_of(tars, tmp_path / "local", workers=1)
    assert manifest_of(tars, tmp_path / "ray", engine="ray", workers=1) == expected


def test_a_full_disk_after_the_shards(small_ray, promptcal, tars, tmp_path, monkeypatch):
    fill = files._fill

    def fail(temporary, write):
        if temporary.name.startswith(".manifest.json."):
            raise OSError(errno.ENOSPC, "No space left on device", str(temporary))
        fill(temporary, write)

    monkeypatch.setattr(files, "_fill", fail)
    words = ("embed", tars, "--backbone", BACKBONE, "--output", tmp_path / "out", "--quiet", "--engine", "ray")
    code, _, said = promptcal(*words, "--workers", "1")
    assert code == 75
    assert "finished shards are kept; free some space, then run the same command again" in " ".join(said.split())
    assert len(list((tmp_path / "out" / "entries").glob("*.json"))) == 2


@pytest.mark.slow
def test_two_nodes_and_a_killed_worker(many_tars, tmp_path):
    """A cluster by address, with a process killed while it embeds: no row is lost or written twice."""
    from ray.cluster_utils import Cluster

    expected = manifest_of(many_tars, tmp_path / "local", workers=1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    killed = []
    watching = threading.Thread(target=_kill_an_actor, args=(tmp_path / "ray" / "entries", killed), daemon=True)
    try:
        watching.start()
        found = manifest_of(many_tars, tmp_path / "ray", engine="ray", address=cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(killed) == 1
    assert found == expected
    assert found["rows"] == 440


def _kill_an_actor(folder, killed):
    """Kill a worker process of this test's cluster as soon as a shard is finished."""
    while not list(folder.glob("*.json")):
        time.sleep(0.02)
    pid = next(pid for pid, title in _descendants(os.getpid()) if title.startswith("ray::") and "MapWorker" in title)
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


def _descendants(root):
    """The processes that a process started, and their titles, by Linux's /proc."""
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                titles[int(entry.name)] = (entry / "cmdline").read_text()
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [(pid, titles.get(pid, "")) for pid in sorted(found - {root})]


@pytest.mark.parametrize(
    ("address", "expected", "message"),
    [
        ("127.0.0.1:1", 75, "there is no Ray cluster at 127.0.0.1:1"),
        ("auto", 75, "no Ray cluster was found on this machine"),
        ("foo", 2, "--address foo is no address of a Ray cluster"),
        ("foo:bar", 2, "--address foo:bar is no address of a Ray cluster"),
        ("127.0.0.1:99999", 2, "--address 127.0.0.1:99999 is no address of a Ray cluster"),
    ],
)
def test_ray_without_its_cluster(promptcal, tars, tmp_path, address, expected, message):
    words = ("embed", tars, "--backbone", BACKBONE, "--output", tmp_path / "out", "--quiet", "--engine", "ray")
    code, _, said = promptcal(*words, "--address", address)
    assert code == expected
    assert message in " ".join(said.split())
    assert "Traceback" not in said


def test_an_image_that_a_task_cannot_reach(small_ray):
    """The error of a task is the one of its image, in one sentence."""

    class Unreachable(ImageSource):  # within the function, so that it is pickled with its code
        def content(self, index):
            raise TryAgainError("the server is away")

    chunk = ImageChunk(["a"], ["a"], ImageSet(["a"], Unreachable()))
    with pytest.raises(TryAgainError, match=r"^the server is away$"):
        list(RayDecoders(1).map([chunk], CropSize(8, 8)))
