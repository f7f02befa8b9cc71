"""Two fits cannot write to one directory, and a killed fit releases its lock."""

import signal

import pytest
from harness import STREAMED


def test_a_second_fit_is_refused_and_the_first_continues(scene, expected, outcome):
    first = scene.start("--no-report")
    assert first.wait_for("training")
    for again in ("--resume", "--overwrite"):
        code, words = scene.run(again)
        assert code == 2
        assert f"is in use by another process (PID {first.process.pid})" in " ".join(words.split())
    code, words = first.end()
    assert code == 0, words
    assert outcome(scene.output) == expected


@pytest.mark.slow
def test_worker_processes_of_a_killed_fit_do_not_keep_the_lock(scene, expected_streamed, outcome):
    scene.settings = STREAMED
    process = scene.start("--no-report")
    assert process.wait_for("training", 4)
    process.send(signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL
    code, words = scene.run("--resume", "--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected_streamed
