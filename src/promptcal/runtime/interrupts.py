"""Stop a run on Ctrl-C, SIGTERM, a closed terminal or a time limit: at once, or after the current step has been saved.

A second Ctrl-C always stops at once.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcal.runtime.distributed import Group

_TIME_LIMIT = 1  # sent instead of the number of a signal, to which 1 is added
EXIT_TIME_LIMIT = 75  # exit code: no error; the same command with --resume continues


_HANGUP = getattr(signal, "SIGHUP", None)  # the terminal was closed


def _signals() -> list[signal.Signals]:
    """Those that stop a run. Under `nohup`, a closed terminal is ignored."""
    found = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        found.append(_HANGUP)
    return found


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _detach(terminals: list[int]) -> None:
    """Nothing can be written to a terminal that was closed, and an attempt would be an error."""
    with open(os.devnull, "wb") as nowhere:
        for descriptor in terminals:
            os.dup2(nowhere.fileno(), descriptor)


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
        self._terminals: list[int] = []

    def __bool__(self) -> bool:
        return self.signal is not None or self._time_is_up()

    def _time_is_up(self) -> bool:
        return self.has_progressed and self._deadline is not None and time.monotonic() >= self._deadline

    def requested_by_any(self, group: "Group") -> bool:
        """Whether any process of a group was asked to stop; then all stop before the same step."""
        own = _TIME_LIMIT if self._time_is_up() else 0
        received = group.all_reduce_max(own if self.signal is None else self.signal + 1)
        if received == _TIME_LIMIT:
            self._deadline, self.has_progressed = -math.inf, True
        elif received:
            self.signal = self.signal or received - 1
        return bool(received)

    @property
    def exit_code(self) -> int:
        return EXIT_TIME_LIMIT if self.signal is None else 128 + self.signal

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        if threading.current_thread() is not threading.main_thread():
            yield self  # signals reach only the main thread
            return
        self._terminals = [descriptor for descriptor in (1, 2) if _is_terminal(descriptor)]
        previous = {s: signal.signal(s, self._handle) for s in _signals()}
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
        if number == _HANGUP:
            _detach(self._terminals)
        is_first = self.signal is None
        self.signal = self.signal or number
        if not self._waits or (number == signal.SIGINT and not is_first):
            raise KeyboardInterrupt
        if is_first:  # a scheduler may send SIGTERM twice
            self._on_first()
