"""Stop a run on Ctrl-C, SIGTERM or a time limit: at once, or after the current step has been saved.

A second Ctrl-C always stops at once.
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

_TIME_LIMIT = 1  # sent instead of a signal number; SIGINT and SIGTERM have higher numbers
EXIT_TIME_LIMIT = 75  # exit code: no error; the same command with --resume continues


class StopRequest:
    """True after a signal or after ``deadline`` (of `time.monotonic`).

    A signal raises `KeyboardInterrupt`, except in `waiting`, where the training loop reads this object.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None, deadline: float | None = None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._deadline = deadline
        self.has_progressed = False  # the time limit applies after the first step, so that every run makes progress
        self._waits = False

    def __bool__(self) -> bool:
        return self.signal is not None or self._time_is_up()

    def _time_is_up(self) -> bool:
        return self.has_progressed and self._deadline is not None and time.monotonic() >= self._deadline

    def requested_by_any(self, group: "Group") -> bool:
        """Whether any process of a group was asked to stop; then all stop before the same step."""
        received = group.all_reduce_max(self.signal or (_TIME_LIMIT if self._time_is_up() else 0))
        if received == _TIME_LIMIT:
            self._deadline, self.has_progressed = -math.inf, True
        elif received:
            self.signal = self.signal or received
        return bool(received)

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
        """In this context, a signal is only recorded, unless it is a second Ctrl-C."""
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
        if is_first:  # a scheduler may send SIGTERM twice
            self._on_first()
