"""`promptcal embed` is killed with SIGKILL at any moment: the same command then ends with the files of an undisturbed
one."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from shard_helpers import BACKBONE, write_tar

from promptcal import api
from promptcal.runtime.files import entries_below, is_temporary

SHARDS, IMAGES = 12, 40


@pytest.fixture
def many_tars(tmp_path, pictures):
    folder = tmp_path / "tars"
    folder.mkdir()
    for i in range(SHARDS):
        write_tar(folder / f"{i:02d}.tar", {f"{i}-{name}": content for name, content in pictures.items()})
    return folder


def manifest_of(tars, output):
    api.embed(source=tars, backbone=BACKBONE, output=output, workers=1, progress=False)
    return json.loads((output / "manifest.json").read_text())


def finished(output):
    """When each shard that counts as finished was written."""
    entries = sorted((output / "entries").glob("*.json"))
    return {entry.stem: (output / "shards" / f"{entry.stem}.parquet").stat().st_mtime_ns for entry in entries}


def check_killed(tars, output, expected, workers, is_time):
    """Kill the command as soon as ``is_time()``; whether it was still running."""
    words = [sys.executable, "-m", "promptcal", "embed", str(tars), "--backbone", BACKBONE, "--output", str(output)]
    words += ["--workers", str(workers), "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not is_time() and process.poll() is None:
            time.sleep(0.005)
        was_running = process.poll() is None
        process.kill()
    assert process.returncode == (-signal.SIGKILL if was_running else 0)
    if was_running and workers > 1:
        time.sleep(1)  # its workers end with it
    kept = finished(output)
    assert manifest_of(tars, output) == expected
    assert kept.items() <= finished(output).items()  # none was computed again
    assert not any(map(is_temporary, entries_below(output)))
    return was_running


def test_a_kill_in_the_middle(many_tars, tmp_path):
    expected = manifest_of(many_tars, tmp_path / "whole")
    output = tmp_path / "out"
    assert check_killed(many_tars, output, expected, 1, lambda: len(list((output / "entries").glob("*.json"))) >= 2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kills_at_random_moments(many_tars, tmp_path, workers):
    seed = int(os.environ.get("PROMPTCAL_TEST_SEED", time.time_ns() % 10**6))
    print(f"PROMPTCAL_TEST_SEED={seed}")
    generator = random.Random(seed)
    expected = manifest_of(many_tars, tmp_path / "whole")
    assert expected["rows"] == SHARDS * IMAGES
    killed = 0
    for i in range(5):
        output = tmp_path / f"{i}"
        n, delay = generator.randrange(SHARDS), generator.random() / 10
        began: list[float] = []

        def is_time(output=output, n=n, delay=delay, began=began):
            """A moment after the plan or a shard was written."""
            if (output / "plan.json").exists() and len(list((output / "entries").glob("*.json"))) >= n:
                began.append(time.monotonic())
            return bool(began) and time.monotonic() >= began[0] + delay

        killed += check_killed(many_tars, output, expected, workers, is_time)
    assert killed >= 3
