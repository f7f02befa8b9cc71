"""Stop on Ctrl-C, SIGTERM or a time limit: at once, or after the current step if a checkpoint must be written.

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

_CLOCK = 1  # sent between processes instead of a signal number; SIGINT and SIGTERM are higher
EXIT_TIME_LIMIT = 75  # exit code: no error; the same command with --resume continues


class StopRequest:
    """True once a signal arrived or the deadline passed.

    A signal raises `KeyboardInterrupt`; inside `waiting` it is only stored, and the training loop checks for it.
    ``on_first`` is called when the first signal is stored. ``deadline`` is a time of `time.monotonic`.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None, deadline: float | None = None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._deadline = deadline
        self.has_progressed = False  # the deadline applies after the first step, so that every run makes progress
        self._waits = False

    def __bool__(self) -> bool:
        return self.signal is not None or self._time_is_up()

    def _time_is_up(self) -> bool:
        return self.has_progressed and self._deadline is not None and time.monotonic() >= self._deadline

    def requested_by_any(self, group: "Group") -> bool:
        """Whether any process of the group was asked to stop; then all stop before the same step."""
        received = group.all_reduce_max(self.signal or (_CLOCK if self._time_is_up() else 0))
        if received == _CLOCK:
            self._deadline, self.has_progressed = -math.inf, True
        elif received and self.signal is None:
            self.signal = received
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
        """In this context a signal is only stored, unless it is a second Ctrl-C."""
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
        if is_first:  # schedulers may send SIGTERM twice
            self._on_first()
