"""Ctrl-C, SIGTERM, a closed terminal: the fit ends at once with the exit code of the signal, and nothing is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from harness import STREAMED, Fault
from test_kills import recover

from promptcal.runtime.interrupts import StopRequest

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize(
    ("phase", "nth", "number"),
    [
        ("decode", 5, signal.SIGTERM),
        ("clustering", 6, signal.SIGINT),  # of the final result
        ("first result", 1, signal.SIGTERM),
        ("training", 5, signal.SIGHUP),
        pytest.param("writing", 1, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("decode", 5, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("clustering", 6, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("training", 5, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("training", 5, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("writing", 1, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed(scene, expected, outcome, phase, nth, number):
    process = scene.start("--no-report")
    assert process.wait_for(phase, nth)
    process.send(number)
    sent = time.monotonic()
    code, words = process.end()
    assert code == CODES[number], words
    assert time.monotonic() - sent < 10  # also on a busy machine
    assert "Traceback" not in words
    assert "run the same command with --resume" in " ".join(words.split())
    code, words = scene.run("--resume", "--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_stopped_while_the_report_is_made(scene, expected, outcome, number):
    process = scene.start()
    assert process.wait_for("report")
    process.send(number)
    code, words = process.end()
    assert code == CODES[number], words
    assert "Traceback" not in words
    assert outcome(scene.output) == expected
    code, words = scene.run("--resume")
    assert code == 2
    assert "finished; there is nothing to resume (promptcal report" in " ".join(words.split())
    assert scene.run(verb="report")[0] == 0
    assert (scene.output / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
@pytest.mark.parametrize("number", CODES)
def test_stopped_at_a_random_moment_and_resumed(scene, undisturbed, expected, outcome, number, attempt):
    """Of the whole command, from reading its arguments to writing its report."""
    chance = random.Random(f"{number} {attempt}")
    longest = undisturbed[1][-1][2] - undisturbed[1][0][2]
    code = 0
    while code == 0:
        process = scene.start()
        delay = chance.random() * longest
        assert process.wait_for("begin")
        time.sleep(delay)
        process.send(number)
        code, words = process.end()
        if code == 0:  # it had ended
            shutil.rmtree(scene.output)
    print(f"{signal.Signals(number).name} after {delay:.2f} s: {words.splitlines()[-1:]}")
    assert code in (CODES[number], -number), words  # a shell shows both in one way; the second is while Python ends
    assert "Traceback" not in words
    recover(scene)
    assert outcome(scene.output) == expected


@pytest.mark.parametrize(
    ("stage", "how", "names", "code"),
    [
        ("arguments", "receive", "SIGTERM", 143),
        ("inputs", "receive", "SIGHUP", 129),
        ("session", "receive", "SIGTERM", 143),  # between the handlers of the command and those of the fit
        ("session", "receive_in_c", "SIGHUP", 129),
        ("preparation", "receive", "SIGTERM SIGHUP SIGTERM", 143),
        ("preparation", "receive", "SIGHUP SIGINT SIGINT", 129),
        ("preparation", "receive_in_destructor", "SIGTERM", 143),
        ("stage", "receive", "SIGHUP", 129),
        ("workers end", "receive", "SIGTERM", 143),
        ("workers end", "receive_in_destructor", "SIGHUP", 129),
        ("release", "receive", "SIGTERM", 143),  # the run is finished
        ("message", "receive", "SIGHUP", 129),
    ],
)
def test_the_exit_code_of_a_signal_at_each_stage(scene, stage, how, names, code):
    scene.settings = STREAMED
    found, words = scene.run("--no-report", fault=Fault(stage, how, names))
    assert found == code, words
    assert "promptcal: " in words
    assert "Traceback" not in words or "Exception ignored in" in words  # what Python prints of a destructor


# Signals while a module is imported, and when the program has ended.
STARTING = """
import runpy, signal, sys
module, number = sys.argv[1], int(sys.argv[2])
class Finder:
    def find_spec(self, name, *given):
        if name == module:
            signal.raise_signal(number)
sys.meta_path.insert(0, Finder())
"""
ENDING = """
import atexit, runpy, signal, sys
atexit.register(signal.raise_signal, int(sys.argv[2]))
"""
COMMAND = "sys.argv[:] = ['promptcal', *sys.argv[3:]]\nrunpy.run_module('promptcal', run_name='__main__')"


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("promptcal.cli.app", signal.SIGINT),
        ("typer", signal.SIGTERM),
        ("torch", signal.SIGHUP),
        ("promptcal.pipeline.fit", signal.SIGINT),
        ("", signal.SIGINT),
        ("", signal.SIGTERM),
    ],
)
def test_a_signal_while_the_program_starts_or_ends(tmp_path, module, number):
    program = (STARTING if module else ENDING) + COMMAND
    words = (module, str(int(number)), "fit", tmp_path / "nowhere", "--output", tmp_path / "run")
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert ended.returncode == (CODES[number] if module else -number), ended.stderr  # a shell shows both in one way
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1] == "promptcal: stopped" if module else "nowhere" in ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked on POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGHUP, 0), (signal.SIGTERM, 143)])
def test_a_forked_worker_that_has_not_begun_does_not_stop_the_run(number, code):
    with StopRequest().listening():
        worker = os.fork()
        if worker == 0:
            try:
                signal.raise_signal(number)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == code


def test_handlers_return_and_every_listener_knows_the_signal():
    before = {number: signal.getsignal(number) for number in CODES}
    outer, inner = StopRequest(), StopRequest()
    with pytest.raises(KeyboardInterrupt), outer.listening(), inner.listening():
        signal.raise_signal(signal.SIGTERM)
    assert {number: signal.getsignal(number) for number in CODES} == before
    assert (outer.exit_code, inner.exit_code) == (143, 143)
    with pytest.raises(KeyboardInterrupt), inner.listening():  # a later one of the same process
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_a_signal_to_all_processes_of_a_streaming_fit(scene, expected_streamed, outcome):
    """As a job scheduler sends it: workers ignore it, and the main process saves its step."""
    scene.settings = STREAMED
    process = scene.start("--no-report")
    assert process.wait_for("training", 4)
    os.killpg(process.process.pid, signal.SIGTERM)
    code, words = process.end()
    assert code == 143, words
    assert "Traceback" not in words
    code, words = scene.run("--resume", "--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected_streamed


def test_a_closed_terminal_is_ignored_under_nohup():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest().listening():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_nothing_is_printed_to_a_closed_terminal(capfd):
    """Writing to it would be an error before the checkpoint is written."""
    terminal, other_end = os.openpty()
    stop, saved = StopRequest(), os.dup(1)
    os.dup2(other_end, 1)
    try:
        with stop.listening(), stop.waiting():
            os.close(terminal)
            signal.raise_signal(signal.SIGHUP)
            os.write(1, b"x")
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(other_end)
    assert stop.exit_code == 129
