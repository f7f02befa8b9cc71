"""The engine array: shard i of n, where torchrun or Slurm says which process this is."""

import json
import os
import subprocess
import sys

import pytest
from shard_helpers import BACKBONE, write_tar

from promptcal import api
from promptcal.errors import ConfigError
from promptcal.shards.engines.worker import WorkerShare, array_share

SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in (*SLURM, "SLURM_PROCID", "SLURM_NTASKS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        (dict(zip(SLURM, ("7", "5", "11", "2"), strict=True)), (1, 4)),
        ({**dict(zip(SLURM, ("1", "0", "2", "1"), strict=True)), "RANK": "1", "WORLD_SIZE": "8"}, (9, 24)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "16"}, (2, 16)),
    ],
)
def test_which_process_this_is(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert array_share() == WorkerShare(*expected)


@pytest.mark.parametrize("environment", [{"RANK": "two", "WORLD_SIZE": "4"}, {"RANK": "4", "WORLD_SIZE": "4"}])
def test_a_wrong_environment_is_an_error(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError):
        array_share()


def test_a_slurm_array(monkeypatch, tars, pictures, tmp_path):
    """Each task finishes its shards, and the last one writes the manifest."""
    write_tar(tars / "2.tar", {"more": pictures["000"]})
    expected = api.embed(source=tars, backbone=BACKBONE, output=tmp_path / "whole", workers=1, progress=False)
    rows = []
    for task in range(2):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "1")
        part = api.embed(source=tars, backbone=BACKBONE, output=tmp_path / "out", engine="array", progress=False)
        assert (part.manifest is None) == (task == 0)
        rows.append(part.rows)
    assert rows == [21, 20]
    assert part.manifest == expected.manifest


@pytest.mark.slow
def test_torchrun(tars, tmp_path):
    expected = api.embed(source=tars, backbone=BACKBONE, output=tmp_path / "whole", workers=1, progress=False)
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "promptcal", "embed", str(tars)]
    words += ["--backbone", BACKBONE, "--output", str(tmp_path / "out"), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    assert "--engine array" in done.stderr
    words += ["--engine", "array"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == expected.manifest.model_dump()
