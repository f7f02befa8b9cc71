"""A fit in a separate process: its command, what it prints as progress, and how it is cancelled."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from promptcal.app.side_process import Cancelled
from promptcal.errors import RunError, shorten
from promptcal.runtime.progress import LINES_VARIABLE

_STEP = re.compile(r"(.+?): (?:epoch )?(\d+) of (\d+)(.*)")
_LONGEST_STEP = 200  # characters
_SECONDS_UNTIL_ASKED_AGAIN, _SECONDS_UNTIL_KILLED = 10, 10


class Progress(NamedTuple):
    """A step, and how much of it is done; ``total`` is 0 if that is not known."""

    step: str
    done: int
    total: int


class FitProcess:
    """Runs `promptcal` with the words of ``command``; the process is started by `run`."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_cancelled = False

    def run(self, on_progress: Callable[[Progress], None]) -> None:
        """Run the fit to its end. Raises `Cancelled`, or a `RunError` with the last message of the fit."""
        with self._lock:
            if self._is_cancelled:
                raise Cancelled
            self._process = subprocess.Popen(
                [sys.executable, "-m", "promptcal", *self.command],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, encoding="utf-8", errors="replace", start_new_session=True,
                env={**os.environ, LINES_VARIABLE: "1"},
            )  # fmt: skip
        last = ""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if not (text := line.strip()):
                continue
            last = text
            on_progress(parse_progress(text))
        if self._process.wait() != 0:
            if self._is_cancelled:
                raise Cancelled
            code = self._process.returncode
            raise RunError(last.removeprefix("promptcal: ") or f"the fit ended with code {code}")

    def cancel(self) -> None:
        """End it as Ctrl-C does, so that it can be resumed."""
        with self._lock:
            is_first, self._is_cancelled = not self._is_cancelled, True
            if self._process is not None and is_first:
                threading.Thread(target=_interrupt, args=(self._process,), daemon=True).start()

    def close(self) -> None:
        """Cancel it and wait until it has ended."""
        self.cancel()
        if self._process is not None:
            self._process.wait()  # it is killed if it does not end


def _interrupt(process: "subprocess.Popen[str]") -> None:
    """Press Ctrl-C, again if that is not enough (a process that starts may miss it), and finally kill it."""
    for seconds in (_SECONDS_UNTIL_ASKED_AGAIN, _SECONDS_UNTIL_KILLED):
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()


def parse_progress(line: str) -> Progress:
    """What a line of a fit says."""
    found = _STEP.match(line)
    if found is None:
        return Progress(shorten(line, _LONGEST_STEP), 0, 0)
    return Progress(shorten(found[1] + found[4], _LONGEST_STEP), int(found[2]), int(found[3]))
