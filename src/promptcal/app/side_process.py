"""A process for what needs PyTorch, so that the server stays small: it is started when something is to be computed, and
ends when nothing was asked for a while."""

import multiprocessing
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from promptcal.errors import PromptCALError, RunError, one_line

_PACKAGE = "promptcal.app"
_IDLE_SECONDS = 120.0
_SECONDS_BETWEEN_CHECKS = 0.1


class Cancelled(Exception):
    """The user does not want the result any more."""


class SideProcess:
    """Calls functions in another process, one at a time. It can be used by several threads."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection[Any, Any] | None = None
        self._is_closed = False

    def call(
        self,
        function: str,
        *arguments: Any,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Any:
        """What the function of a module of the app, given as "module.function", returns; its errors are raised here.

        Raises `Cancelled` as soon as ``is_cancelled``.
        """
        with self._lock:
            try:
                return self._call(function, arguments, on_progress, is_cancelled)
            except (EOFError, OSError):  # it ended because it had nothing to do, just as it was called
                self._stop()
            try:
                return self._call(function, arguments, on_progress, is_cancelled)
            except (EOFError, OSError) as error:
                self._stop()
                raise RunError(
                    "the computation was killed, probably because the memory is full; close other programs and try "
                    "again"
                ) from error

    def close(self) -> None:
        """End the process, also while it computes."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._stop()

    def _call(
        self,
        function: str,
        arguments: tuple[Any, ...],
        on_progress: Callable[[int, int], None],
        is_cancelled: Callable[[], bool],
    ) -> Any:
        if self._is_closed:
            raise Cancelled
        try:
            connection = self._started()
            connection.send((function, arguments))
            while True:
                while not connection.poll(_SECONDS_BETWEEN_CHECKS):
                    if is_cancelled():
                        raise Cancelled
                kind, value = connection.recv()
                if kind == "progress":
                    if is_cancelled():
                        raise Cancelled
                    on_progress(*value)
                elif kind == "error":
                    error, message = value
                    raise error(message)
                else:
                    return value
        except Cancelled:
            self._stop()
            raise

    def _started(self) -> "Connection[Any, Any]":
        if self._process is None or not self._process.is_alive() or self._connection is None:
            self._stop()
            self._connection, theirs = self._context.Pipe()
            with theirs:
                process = self._context.Process(target=_answer, args=(theirs,), daemon=True)
                process.start()  # it may fail, if there is no memory
            self._process = process
            if self._is_closed:
                raise Cancelled
        return self._connection

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _answer(connection: "Connection[Any, Any]") -> None:
    """The loop of the other process. It ends when the server does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends this process
    try:
        while connection.poll(_IDLE_SECONDS):
            function, arguments = connection.recv()
            module, _, name = function.rpartition(".")
            try:
                called = getattr(import_module(f"{_PACKAGE}.{module}"), name)
                result = called(*arguments, lambda *done: connection.send(("progress", done)))
                answer: Any = "result", result
            except PromptCALError as error:
                answer = "error", (type(error), str(error))
            except (MemoryError, RuntimeError, OSError, ValueError) as error:
                answer = "error", (RunError, f"this could not be computed ({one_line(error)}); try again")
            connection.send(answer)
    except (EOFError, OSError):
        pass
