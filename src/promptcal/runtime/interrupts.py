"""Ctrl-C, SIGTERM and a time limit: granted at once, or while something must be saved first, when it has been.

A second Ctrl-C is granted at once, whatever is at hand.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcal.runtime.distributed import Group

_CLOCK = 1  # among the signals' numbers, of which none that is listened to is that low
EXIT_TIME_LIMIT = 75  # exit code: nothing went wrong, the same command with --resume goes on


class StopRequest:
    """Set by a signal, which raises `KeyboardInterrupt` or waits to be read by the loop.

    Where ``deadline`` (of `time.monotonic`) is given, it is set by the clock as well, for the loop to read.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None, deadline: float | None = None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._deadline = deadline
        self.has_progressed = False  # the clock stops no run before its first step, or it would never get on
        self._waits = False

    def __bool__(self) -> bool:
        return self.signal is not None or self._time_is_up()

    def _time_is_up(self) -> bool:
        return self.has_progressed and self._deadline is not None and time.monotonic() >= self._deadline

    def requested_by_any(self, group: "Group") -> bool:
        """Whether any process of a group was asked to stop, on which all then stop before the same step."""
        heard = group.all_reduce_max(self.signal or (_CLOCK if self._time_is_up() else 0))
        if heard == _CLOCK:
            self._deadline, self.has_progressed = -math.inf, True
        elif heard and self.signal is None:
            self.signal = heard
        return bool(heard)

    @property
    def exit_code(self) -> int:
        return EXIT_TIME_LIMIT if self.signal is None else 128 + self.signal

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        if threading.current_thread() is not threading.main_thread():
            yield self  # signals reach only the main thread
            return
        previous = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this lasts, a signal is only noted, unless it is a second Ctrl-C."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first = self.signal is None
        self.signal = self.signal or number
        if not self._waits or (number == signal.SIGINT and not is_first):
            raise KeyboardInterrupt
        if is_first:  # a scheduler may well send its SIGTERM twice
            self._on_first()
