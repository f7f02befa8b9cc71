"""Ctrl-C, SIGTERM, a closed terminal: the fit ends at once with the exit code of the signal, and nothing is lost."""

import os
import signal
import time

import pytest
from harness import STREAMED

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
