"""Ctrl-C and SIGTERM as a wish, granted between two steps; a second Ctrl-C is granted at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from promptcal.distributed import Group


class StopRequest:
    """Set by a signal, read by the loop."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self._on_first = on_first

    def __bool__(self) -> bool:
        return self.signal is not None

    def heard_by_any(self, group: Group) -> bool:
        """Whether any process of a group was asked to stop, on which all then stop before the same step."""
        heard = group.largest(self.signal or 0)
        if heard and self.signal is None:
            self.signal = heard
        return bool(heard)

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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._on_first()
