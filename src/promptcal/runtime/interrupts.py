"""Stop a run on Ctrl-C, SIGTERM, a closed terminal or a time limit: at once, or after the current step has been saved.

A second Ctrl-C always stops at once.
"""

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from promptcal.errors import has_cause

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

    A signal raises `KeyboardInterrupt`, except in `waiting`, where the training loop reads this object. Requests can
    listen one inside another. All of them record the signal, so that the exit code is known wherever the exception is
    caught. The innermost one decides whether it is raised.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None, deadline: float | None = None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._deadline = deadline
        self.has_progressed = False  # the time limit applies after the first step, so that every run makes progress
        self._waits = False
        self._has_raised = False

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

    def check(self) -> None:
        """Raise `KeyboardInterrupt` again if it was lost. Python only prints what is raised in a destructor."""
        if self._has_raised and not self._waits:
            raise KeyboardInterrupt

    def has_caused(self, error: BaseException) -> bool:
        """Whether an error was raised while the program stopped after a signal."""
        return self.signal is not None and has_cause(error, KeyboardInterrupt)

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        if threading.current_thread() is not threading.main_thread():
            yield self  # signals reach only the main thread
            return
        if not _listeners or os.getpid() != _owner:  # or of the process that this one was forked from
            with _handlers_set(self):
                yield self
            return
        _listeners[-1].check()
        try:
            _listeners.append(self)
            yield self
        finally:
            if self in _listeners:
                _listeners.remove(self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In this context, a signal is only recorded, unless it is a second Ctrl-C."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _react(self, number: int, is_first: bool) -> None:
        """Once a signal has stopped the run, a further one does not disturb the clean-up, unless it is Ctrl-C."""
        if self._waits and (is_first or number != signal.SIGINT):
            if is_first:
                self._on_first()
        elif is_first or number == signal.SIGINT or not has_cause(sys.exc_info()[1], KeyboardInterrupt):
            self._has_raised = True
            raise KeyboardInterrupt


def run_program(program: Callable[[StopRequest], None]) -> None:
    """Run a program that ends with `sys.exit`. A signal ends it with 128 + the signal, whenever it arrives."""
    stop = StopRequest()
    try:
        with stop.listening():
            try:
                program(stop)
            except (Exception, KeyboardInterrupt):  # code in C may turn `KeyboardInterrupt` into another exception
                if not stop:
                    raise
                print("promptcal: stopped", file=sys.stderr)
                sys.exit(stop.exit_code)
            finally:
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)  # no traceback while Python ends
    except KeyboardInterrupt:
        if not stop:
            raise
        sys.exit(stop.exit_code)


_listeners: list[StopRequest] = []  # the innermost is the last
_terminals: list[int] = []
_owner = 0  # the process that has set the handlers


@contextmanager
def _handlers_set(outermost: StopRequest) -> Iterator[None]:
    global _owner, _terminals
    _owner = os.getpid()
    _terminals = [descriptor for descriptor in (1, 2) if _is_terminal(descriptor)]
    previous = {number: signal.getsignal(number) for number in _signals()}
    last = StopRequest()
    last._waits = True
    try:
        _listeners[:] = [outermost]
        for number in previous:
            signal.signal(number, _handle)
        yield
    finally:
        _listeners[:] = [last]  # it records a signal until the previous handlers are back
        for number, handler in previous.items():
            signal.signal(number, handler)
        _listeners.clear()
        if last.signal is not None:
            outermost.signal = outermost.signal or last.signal
            raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _owner:  # a forked worker that has not set its own handlers yet; its parent decides
        if number == signal.SIGTERM:
            os._exit(128 + number)
        return
    if number == _HANGUP:
        _detach(_terminals)
    is_first = _listeners[-1].signal is None
    for request in _listeners:
        request.signal = request.signal or number
    _listeners[-1]._react(number, is_first)
