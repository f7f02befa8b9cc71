"""A fit that is killed at any moment and resumed is bit-equal to an uninterrupted one."""

import random
import shutil
import signal
import sys
import time

import pytest
from harness import Fault, is_running, leftovers, start_decoding

PHASES_TO_KILL = ("decode", "first result", "training", "checkpoint", "clustering", "report")


def moments(events, phase):
    """The duration of each pass through a phase, as (nth, seconds)."""
    begins = [t for name, side, t in events if (name, side) == (phase, "in")]
    ends = [t for name, side, t in events if (name, side) == (phase, "out")]
    return [(nth, max(0.0, end - begin)) for nth, (begin, end) in enumerate(zip(begins, ends, strict=False), 1)]


def recover(scene):
    """What a user does after a crash: --resume, then what the message says."""
    code, words = scene.run("--resume")
    if "remove --resume" in words:
        code, words = scene.run()
    elif "promptcal report" in words:
        assert code == 2
        code, words = scene.run(verb="report")
    assert code == 0, words


def kill_and_recover(scene, events, phase, seed):
    """Kill a fit at a random moment, or earlier if it has ended by then; returns the phase in which it was killed."""
    chance = random.Random(seed)
    nth, seconds = chance.choice(moments(events, phase))
    delay = chance.random() * seconds
    while True:
        process = scene.start()
        assert process.wait_for(phase, nth)
        time.sleep(delay)
        process.send(signal.SIGKILL)
        code, words = process.end()
        if code == -signal.SIGKILL:
            break
        assert code == 0, words
        shutil.rmtree(scene.output)
        delay /= 2
    recover(scene)
    assert leftovers(scene.place) == []
    return [name for name, side, _ in process.events() if side == "in"][-1]


@pytest.mark.parametrize("phase", ["decode", "clustering", "first result", "writing"])
def test_killed_and_resumed(scene, undisturbed, expected, outcome, phase):
    kill_and_recover(scene, undisturbed[1], phase, seed=phase)
    assert outcome(scene.output) == expected


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("phase", PHASES_TO_KILL)
def test_killed_at_a_random_moment_and_resumed(scene, undisturbed, expected, outcome, phase, attempt):
    killed_in = kill_and_recover(scene, undisturbed[1], phase, seed=f"{phase} {attempt}")
    print(f"wanted {phase}, killed in {killed_in}")
    assert outcome(scene.output) == expected
    assert (scene.output / "report.html").exists()


@pytest.mark.parametrize("file", ["last.pt", pytest.param("run.json", marks=pytest.mark.slow)])
def test_killed_with_a_file_half_written(scene, expected, outcome, file):
    phase, nth = ("checkpoint", 2) if file == "last.pt" else ("decode", 1)
    code, words = scene.run("--no-report", fault=Fault(phase, "kill_while_writing", file, nth))
    assert code == -signal.SIGKILL, words
    assert len(leftovers(scene.output)) == 1
    recover(scene)
    assert leftovers(scene.output) == []
    assert outcome(scene.output) == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="images are read in worker processes on Linux only")
def test_no_worker_outlives_a_killed_process(image_folder, tmp_path):
    process = start_decoding(image_folder, tmp_path / "workers")
    deadline = time.monotonic() + 60
    while not (tmp_path / "workers").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    workers = [int(number) for number in (tmp_path / "workers").read_text().split()]
    assert workers
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
