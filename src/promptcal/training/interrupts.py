"""Ctrl-C, SIGTERM and a time limit as a wish, granted between two steps; a second Ctrl-C is granted at once."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from promptcal.distributed import Group

_CLOCK = 1  # among the signals' numbers, of which none that is listened to is that low
TIME_IS_UP = 75  # exit code: nothing went wrong, the same command with --resume goes on


class StopRequest:
    """Set by a signal or, where ``deadline`` (of `time.monotonic`) is given, by the clock; read by the loop."""

    def __init__(self, on_first: Callable[[], None] = lambda: None, deadline: float | None = None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._deadline = deadline

    def __bool__(self) -> bool:
        return self.signal is not None or self._time_is_up()

    def _time_is_up(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def heard_by_any(self, group: Group) -> bool:
        """Whether any process of a group was asked to stop, on which all then stop before the same step."""
        heard = group.largest(self.signal or (_CLOCK if self._time_is_up() else 0))
        if heard == _CLOCK:
            self._deadline = -math.inf
        elif heard and self.signal is None:
            self.signal = heard
        return bool(heard)

    @property
    def exit_code(self) -> int:
        return TIME_IS_UP if self.signal is None else 128 + self.signal

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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._on_first()
