"""The clock of a run: every moment belongs to one phase."""

import pytest

from promptcal.runtime import phases
from promptcal.runtime.phases import CLUSTERING, EMBEDDING, OTHER, START_UP, PhaseClock, describe_phases


@pytest.fixture
def now(monkeypatch):
    """The time, as a list of one number, which a test changes."""
    time = [50.0]
    monkeypatch.setattr(phases.time, "monotonic", lambda: time[0])
    return time


def test_nested_phases_interrupt_each_other_and_add_up(now):
    clock = PhaseClock()
    now[0] += 1
    assert clock.switch(OTHER) == START_UP
    now[0] += 2
    with clock.phase(CLUSTERING):
        now[0] += 4
        with clock.phase(EMBEDDING):
            now[0] += 8
            with clock.phase(CLUSTERING):  # again, inside another phase
                now[0] += 16
        now[0] += 32
        assert clock.phases() == {START_UP: 1, OTHER: 2, CLUSTERING: 52, EMBEDDING: 8}  # while one is running
    now[0] += 64
    assert clock.phases() == {START_UP: 1, OTHER: 66, CLUSTERING: 52, EMBEDDING: 8}
    assert clock.elapsed() == now[0] - clock.started == 127
    assert clock.mean(CLUSTERING) == 26
    assert clock.mean("report") is None


def test_a_phase_that_fails_ends(now):
    clock = PhaseClock()

    def fail():
        with clock.phase(EMBEDDING):
            now[0] += 3
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    now[0] += 1
    assert clock.phases() == {START_UP: 1, EMBEDDING: 3}


def test_the_phases_of_earlier_parts_are_added(now):
    clock = PhaseClock()
    with clock.phase(EMBEDDING):
        now[0] += 3
    clock.add_earlier({EMBEDDING: 10.0, "warmup steps": 100.0})
    assert clock.phases() == {START_UP: 0, EMBEDDING: 13, "warmup steps": 100}
    assert clock.elapsed() == 113
    assert clock.mean("warmup steps") == 100


def test_phases_in_words():
    text = describe_phases(231.4, {START_UP: 0.99, "reading": 2.2, "warmup steps": 80.4, OTHER: 1.0})
    assert text == "Took 231 s: reading 2 s, warmup steps 80 s, other 1 s"
    assert describe_phases(0.8, {"reading": 0.8}) == "Took 1 s"
    assert describe_phases(12.0, {}) == "Took 12 s"  # a run of an earlier version
