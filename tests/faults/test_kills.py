"""A fit killed at any moment and resumed comes to the very end it would have come to."""

import random
import shutil
import signal
import sys
import time

import pytest
from harness import Fault, is_running, leftovers, start_decoding

STRUCK = ("decode", "training", "checkpoint", "clustering", "report")


def moments(events, phase):
    """Begin and duration of each time a phase was gone through, as (nth, seconds)."""
    begins = [t for name, side, t in events if (name, side) == (phase, "in")]
    ends = [t for name, side, t in events if (name, side) == (phase, "out")]
    return [(nth, max(0.0, end - begin)) for nth, (begin, end) in enumerate(zip(begins, ends, strict=False), 1)]


def go_on(scene):
    """What a person does after a crash: --resume, and what the answer says to do."""
    code, words = scene.run("--resume")
    if "leave --resume out" in words:
        code, words = scene.run()
    elif "promptcal report" in words:
        assert code == 2
        code, words = scene.run(verb="report")
    assert code == 0, words


def kill_and_go_on(scene, events, phase, seed):
    """Kill a fit at a moment drawn by ``seed``, or sooner if it is done by then; gives the phase that was struck."""
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
    go_on(scene)
    assert leftovers(scene.place) == []
    return [name for name, side, _ in process.events() if side == "in"][-1]


@pytest.mark.parametrize("phase", ["decode", "clustering"])
def test_killed_and_resumed(scene, undisturbed, expected, outcome, phase):
    kill_and_go_on(scene, undisturbed[1], phase, seed=phase)
    assert outcome(scene.output) == expected


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("phase", STRUCK)
def test_killed_at_a_random_moment_and_resumed(scene, undisturbed, expected, outcome, phase, attempt):
    struck = kill_and_go_on(scene, undisturbed[1], phase, seed=f"{phase} {attempt}")
    print(f"wanted {phase}, struck in {struck}")
    assert outcome(scene.output) == expected
    assert (scene.output / "report.html").exists()


@pytest.mark.parametrize("file", ["last.pt", pytest.param("run.json", marks=pytest.mark.slow)])
def test_killed_with_a_file_half_written(scene, expected, outcome, file):
    phase, nth = ("checkpoint", 2) if file == "last.pt" else ("decode", 1)
    code, words = scene.run("--no-report", fault=Fault(phase, "kill_while_writing", file, nth))
    assert code == -signal.SIGKILL, words
    assert len(leftovers(scene.output)) == 1
    go_on(scene)
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
