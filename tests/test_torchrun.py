"""Whole fits under torchrun: the result of one process, messages once, a killed process, a restart, Ctrl-C."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from promptcal.api import fit

SECONDS_TO_END = 20  # for all processes, from the death of one of them

ROUNDING = 3e-5  # of embeddings; with smaller images affinities tie, and rounding decides which are positives
TIES = 0.05  # of stage 2, where rounding decides between affinities that tie: one positive pair more or less


@pytest.fixture(scope="module")
def start(small_folder, whole_size_settings, common_settings):
    """``start(output, world, ...)``: a fit as one process, or as several under torchrun."""

    def launch(output, world=1, *more, torchrun=(), n_classes=4, method="promptcal"):
        program = [sys.executable]
        if world > 1 or torchrun:
            program += ["-m", "torch.distributed.run", "--nproc-per-node", str(world), *torchrun]
        if world > 1:
            program.append("--standalone")
        command = ["-m", "promptcal", "fit", str(small_folder), "--labels", str(small_folder / "labels.csv")]
        command += ["--n-classes", str(n_classes), "--output", str(output), "--seed", "3", "--no-report"]
        command += ["--method", method]
        settings = whole_size_settings if method.startswith("promptcal") else (*common_settings, "model.image_size=32")
        for setting in (*settings, *more):
            command += ["--set", setting] if not setting.startswith("-") else [setting]
        return subprocess.Popen(program + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return launch


@pytest.fixture(scope="module")
def finished(start):
    """``finished(output, world, ...)``: the same, to its end; returns what it printed."""

    def run(*given, **options):
        process = start(*given, **options)
        out, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
        return out, errors

    return run


def clusters(run):
    with (run / "assignments.csv").open() as file:
        return {row["path"]: int(row["cluster"]) for row in csv.DictReader(file)}


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wait_for_records(run, n, process):
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "metrics.jsonl").exists() and len(records(run)) >= n:
            return
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"no {n} records: {process.communicate()}")


def free_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def has_rank(rank, torchrun):
    try:
        return bool(pid_of(rank, torchrun))
    except AssertionError:
        return False


def pid_of(rank, torchrun):
    """The process of that rank, among torchrun's children."""
    for child in Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
def test_two_processes_give_the_result_of_one_and_only_the_first_prints(
    finished, small_folder, whole_size_settings, tmp_path
):
    out, errors = finished(tmp_path / "two", 2)
    given = {
        "images": small_folder,
        "labels": small_folder / "labels.csv",
        "n_classes": 4,
        "seed": 3,
        "overrides": whole_size_settings,
    }
    fit(**given, output=tmp_path / "one", progress=False, report=False)
    assert clusters(tmp_path / "two") == clusters(tmp_path / "one")
    two, one = (np.load(tmp_path / name / "embeddings.npy") for name in ("two", "one"))
    np.testing.assert_allclose(two, one, atol=ROUNDING)
    for shared, alone in zip(records(tmp_path / "two"), records(tmp_path / "one"), strict=True):
        stage = alone.pop("stage")
        assert (shared.pop("stage"), shared.pop("epoch")) == (stage, alone.pop("epoch"))
        for key in alone.keys() - {"seconds"}:
            assert shared[key] == pytest.approx(alone[key], rel=TIES if stage == "affinity" else 1e-4), key
    assert out.count("Took ") == 1
    for stage in ("stage 1, warm-up", "stage 2, affinity learning"):
        assert errors.count(f"PromptCAL {stage}: epoch 2 of 2") == 1
    assert "in 2 processes" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "method"),
    [
        ("mapped", "promptcal"),
        ("stream", "promptcal"),
        ("mapped", "kmeans"),
        ("stream", "gcd"),
        ("memory", "promptcal-warmup"),
        ("memory", "simgcd"),
    ],
)
def test_stores_and_methods_under_torchrun(finished, tmp_path, store, method):
    finished(tmp_path / "two", 2, f"data.store={store}", method=method)
    finished(tmp_path / "one", 1, f"data.store={store}", method=method)
    assert clusters(tmp_path / "two") == clusters(tmp_path / "one")
    two, one = (np.load(tmp_path / name / "embeddings.npy") for name in ("two", "one"))
    np.testing.assert_allclose(two, one, atol=ROUNDING)


@pytest.mark.slow
def test_the_number_of_classes_is_estimated_once_for_all(finished, tmp_path):
    finished(tmp_path / "two", 2, "affinity.epochs=0", n_classes="auto")
    finished(tmp_path / "one", 1, "affinity.epochs=0", n_classes="auto")
    assert clusters(tmp_path / "two") == clusters(tmp_path / "one")
    assert (tmp_path / "two" / "class-count.json").read_text() == (tmp_path / "one" / "class-count.json").read_text()


@pytest.mark.slow
def test_an_error_of_all_processes_is_printed_once(start, tmp_path):
    process = start(tmp_path / "run", 2, "data.batch_size=15")
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert errors.count("cannot be divided among 2 processes") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_process_is_killed_all_end_with_a_message(start, tmp_path, rank):
    process = start(tmp_path / "run", 2, "warmup.epochs=200")
    wait_for_records(tmp_path / "run", 2, process)
    others = [pid_of(r, process) for r in (0, 1)]
    begun = time.monotonic()
    os.kill(others[rank], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    seconds = time.monotonic() - begun
    print(f"all had ended {seconds:.1f} s after process {rank} was killed")
    assert seconds < SECONDS_TO_END
    assert process.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)
    assert errors.count("another process of this run has ended") == 1
    assert "--resume" in errors


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "after_records"), [(1, 1), (0, 3), (1, 3)])
def test_a_restarted_group_continues_from_the_checkpoint(start, finished, tmp_path, outcome, rank, after_records):
    finished(tmp_path / "undisturbed", 2)
    process = start(tmp_path / "run", 2, torchrun=("--max-restarts", "1"))
    wait_for_records(tmp_path / "run", after_records, process)
    os.kill(pid_of(rank, process), signal.SIGKILL)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert "restarted by torchrun (restart 1)" in errors
    assert "continues from its last checkpoint" in errors
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")  # bit-equal


@pytest.mark.slow
def test_two_machines_restart_together_though_only_one_counts_the_restart(start, finished, tmp_path, outcome):
    """Two torchruns act as two machines; a process of the second one is killed."""
    finished(tmp_path / "undisturbed", 2)
    endpoint = f"127.0.0.1:{free_port()}"
    together = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "a-job")
    agents = [start(tmp_path / "run", 1, torchrun=(*together, "--max-restarts", "1")) for _ in range(2)]
    wait_for_records(tmp_path / "run", 2, agents[0])
    killed = next(agent for agent in agents if has_rank(1, agent))
    os.kill(pid_of(1, killed), signal.SIGKILL)
    said = [agent.communicate(timeout=280)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "".join(said).count("continues from its last checkpoint") == 1
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_restart_does_not_resume_an_older_run(start, finished, tmp_path):
    """The restarted attempt must reject what the first one rejected."""
    finished(tmp_path / "run", 1, "affinity.epochs=0", "warmup.epochs=1")
    before = (tmp_path / "run" / "run.json").read_text()
    process = start(tmp_path / "run", 2, torchrun=("--max-restarts", "1"))
    _, errors = process.communicate(timeout=200)
    assert process.returncode != 0
    assert errors.count("holds a finished run") == 2  # once in each attempt
    assert (tmp_path / "run" / "run.json").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_all_at_the_same_step_and_any_number_of_processes_can_resume(start, finished, tmp_path, number):
    finished(tmp_path / "undisturbed", 2)
    process = start(tmp_path / "run", 2)
    wait_for_records(tmp_path / "run", 1, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert "run the same command with --resume" in errors
    assert "another process" not in errors
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    finished(tmp_path / "run", 4 if number == signal.SIGINT else 1, "--resume")
    assert clusters(tmp_path / "run") == clusters(tmp_path / "undisturbed")
    resumed, undisturbed = (np.load(tmp_path / name / "embeddings.npy") for name in ("run", "undisturbed"))
    np.testing.assert_allclose(resumed, undisturbed, atol=ROUNDING)
