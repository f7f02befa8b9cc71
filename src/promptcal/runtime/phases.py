"""The time of a run by phase: what its seconds were spent on."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

START_UP = "start-up"
READING = "reading"
COMPILING = "compiling"
VALIDATION = "validation"
SAVING = "saving"
EMBEDDING = "embedding"
COUNTING = "counting classes"
AGREEMENT = "comparing numbers"
ADAPTATION = "adaptation"
CLUSTERING = "clustering"
READ_OUT = "read-out"
COMPARISON = "comparison"
CALIBRATION = "calibration"
REPORT = "report"
OTHER = "other"

_SHORTEST = 1.0  # seconds of a phase that is shown


class PhaseClock:
    """Seconds that a run has taken, by phase, including the parts before it was resumed.

    Each moment belongs to one phase: a phase inside another one interrupts it, so the phases add up to the elapsed
    time. A run begins with its start-up; what is in no phase is "other".
    """

    def __init__(self) -> None:
        self.before_phase: Callable[[], None] = lambda: None
        self.started = time.monotonic()
        self._phase = START_UP
        self._since = self.started
        self._seconds: dict[str, float] = {}
        self._times: Counter[str] = Counter()

    @contextmanager
    def phase(self, name: str, device: torch.device | None = None) -> Iterator[None]:
        """Count the time within as a phase.

        Work on a GPU runs later than it was started. ``device`` is waited for at the end, so that the time counts where
        the work was started. Training steps give no device, because waiting would slow them down: the end of an epoch
        waits for its results anyway.
        """
        self.before_phase()
        outer = self.switch(name)
        self._times[name] += 1
        try:
            yield
            if device is not None and device.type == "cuda":
                torch.cuda.synchronize(device)
        finally:
            self.switch(outer)

    def switch(self, name: str) -> str:
        """Begin or continue a phase; returns the one that ends."""
        now, ended = time.monotonic(), self._phase
        self._add(ended, now - self._since)
        self._phase, self._since = name, now
        return ended

    def add_earlier(self, phases: Mapping[str, float]) -> None:
        """Add the phases of the parts before the run was resumed."""
        for name, seconds in phases.items():
            self._add(name, seconds)

    def phases(self) -> dict[str, float]:
        """Seconds by phase until now, in the order in which the phases began."""
        self.switch(self._phase)
        return dict(self._seconds)

    def elapsed(self) -> float:
        return sum(self.phases().values())

    def mean(self, name: str) -> float | None:
        """Seconds of a phase each time it ran; None if it has not run. Earlier parts of the run count as one time."""
        seconds = self.phases().get(name)
        return None if seconds is None else seconds / max(1, self._times[name])

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def steps_of(stage: str) -> str:
    """The phase of a stage's training steps."""
    return f"{stage} steps"


def describe_phases(seconds: float, phases: Mapping[str, float]) -> str:
    """Such as `Took 231 s: reading 2 s, warmup steps 80 s, affinity steps 140 s`, without phases under a second."""
    shown = [f"{name} {spent:.0f} s" for name, spent in phases.items() if spent >= _SHORTEST]
    return f"Took {seconds:.0f} s" + (f": {', '.join(shown)}" if shown else "")
