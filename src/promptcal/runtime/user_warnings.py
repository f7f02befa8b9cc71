"""Warnings for the user: on the terminal, or collected for a page."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from promptcal.errors import PromptCALWarning, one_line

_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


def warn(message: str, stacklevel: int = 1) -> None:
    """Warn of what the caller sees, or of ``stacklevel - 1`` calls above it."""
    collected = _collected.get()
    if collected is None:
        warnings.warn(message, PromptCALWarning, stacklevel=stacklevel + 1)
    else:
        collected.append(one_line(message))


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """What `warn` says in this thread, instead of a warning. `warnings.catch_warnings` is for all threads at once."""
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)
