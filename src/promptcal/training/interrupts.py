"""Ctrl-C and SIGTERM: granted at once, or while something must be saved first, as a wish for when it has been.

A second Ctrl-C is granted at once, whatever is at hand.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by a signal; raises `KeyboardInterrupt`, or waits to be read by the loop."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._waits = False

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal or signal.SIGINT)

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
        """While this lasts, a first signal is only noted."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first = self.signal is None
        self.signal = self.signal or number
        if not (is_first and self._waits):
            raise KeyboardInterrupt
        self._on_first()
