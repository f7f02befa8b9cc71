"""How long a fit takes: an estimate for all stages and what follows them; the measured steps replace it."""

import time
from collections.abc import Mapping


class TimeEstimate:
    """The seconds left of a fit.

    ``steps`` are those of each stage, in order, ``step_seconds`` an estimate of one with its share of the validations.
    ``seconds_after`` is an estimate of what follows the last stage. As soon as steps of a stage have run, their mean
    time, validation included, is used for it and for the stages after it.
    """

    def __init__(self, steps: Mapping[str, int], step_seconds: float, seconds_after: float = 0.0) -> None:
        self._steps = dict(steps)
        self._step_seconds = step_seconds
        self._seconds_after = seconds_after
        self._stage = next(iter(self._steps), "")
        self._first_step = 0
        self._started = time.monotonic()

    def begin(self, stage: str, step: int) -> None:
        """A stage begins, or is resumed, at a step."""
        self._stage, self._first_step, self._started = stage, step, time.monotonic()

    def update(self, step: int) -> None:
        """So many steps of the current stage are done."""
        if step > self._first_step:
            self._step_seconds = (time.monotonic() - self._started) / (step - self._first_step)

    def seconds_left(self, step: int = 0) -> float:
        """From this step of the current stage to the end of the fit."""
        names = list(self._steps)
        later = sum(self._steps[name] for name in names[names.index(self._stage) :]) if names else 0
        return max(0, later - step) * self._step_seconds + self._seconds_after


def describe_duration(seconds: float) -> str:
    """Such as `40 s`, `4 min` or `6.5 h`."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
