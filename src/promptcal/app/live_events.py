"""Server-sent events: what happens is sent to every open page."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

_SECONDS_BETWEEN_BEATS = 15.0
_SECONDS_BETWEEN_PROGRESS = 0.2
_MOST_WAITING = 200  # events; a page that is further behind has to load everything again


class Events:
    """Sends messages, from any thread, to all pages that listen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Queue[str | None]]] = {}
        self._next = 0

    def send(self, kind: str, message: dict[str, Any]) -> None:
        text = f"event: {kind}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n"
        with self._lock:
            listeners = list(self._listeners.values())
        for loop, queue in listeners:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_put, queue, text)

    def end(self) -> None:
        """Let all pages connect again."""
        with self._lock:
            listeners = list(self._listeners.values())
        for loop, queue in listeners:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, None)

    async def stream(self, first: str, beat: Callable[[], str]) -> AsyncIterator[str]:
        """The text of the answer: ``first``, then every message, and now and then what ``beat`` returns, so that a dead
        connection is noticed."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._listeners[number] = asyncio.get_running_loop(), queue
        try:
            yield f"retry: 1000\nevent: hello\ndata: {first}\n\n"
            while (text := await _next(queue, beat)) is not None:
                yield text
        finally:
            with self._lock:
                del self._listeners[number]


class Pace:
    """Limits how often the progress of one job is sent."""

    def __init__(self) -> None:
        self._last = 0.0

    def allows(self, *, always: bool = False) -> bool:
        """Whether to send now; ``always`` is for what must not be left out."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_PROGRESS and not always:
            return False
        self._last = now
        return True


async def _next(queue: "asyncio.Queue[str | None]", beat: Callable[[], str]) -> str | None:
    try:
        return await asyncio.wait_for(queue.get(), _SECONDS_BETWEEN_BEATS)
    except asyncio.TimeoutError:
        return beat()


def _put(queue: "asyncio.Queue[str | None]", text: str) -> None:
    if queue.qsize() < _MOST_WAITING:
        queue.put_nowait(text)
    elif queue.qsize() == _MOST_WAITING:
        queue.put_nowait("event: reload\ndata: {}\n\n")
