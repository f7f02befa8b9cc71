"""The time left of all stages, from an estimate and then from measured steps."""

import pytest

from promptcal.training import time_estimate
from promptcal.training.time_estimate import TimeEstimate, describe_duration


def test_measured_steps_replace_the_estimate(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time_estimate.time, "monotonic", lambda: now[0])
    assert TimeEstimate({"warmup": 100, "affinity": 50}, 2.0, 30.0).seconds_left(10) == 310.0  # with what follows
    clock = TimeEstimate({"warmup": 100, "affinity": 50}, 2.0)
    assert clock.seconds_left() == 300.0
    clock.begin("warmup", 20)  # resumed there
    clock.update(20)
    assert clock.seconds_left(20) == 260.0
    now[0] += 40.0
    clock.update(30)
    assert clock.seconds_left(30) == (70 + 50) * 4.0
    clock.begin("affinity", 0)
    assert clock.seconds_left(0) == 50 * 4.0
    now[0] += 10.0
    clock.update(10)
    assert clock.seconds_left(10) == 40 * 1.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (41, "41 s"), (250, "4 min"), (4000, "67 min"), (23_400, "6.5 h")]
)
def test_durations_in_words(seconds, text):
    assert describe_duration(seconds) == text
