"""One process at a time in a folder, by a lock that the system lets go of when its holder ends, however it ends."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptcal.errors import PromptCALWarning, RunError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

_held: set[int] = set()


def _let_go_in_child() -> None:
    """A worker process must not keep a lock that its killed parent held."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``, or raise that another process is at work on ``what``."""
    descriptor = _open_locked(path, what)
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _open_locked(path: Path, what: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if try_lock(descriptor):
            if _is_still(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
            os.close(descriptor)  # its holder has removed it meanwhile
            continue
        holder = os.read(descriptor, 20).decode(errors="replace").strip()
        os.close(descriptor)
        number = f" ({holder})" if holder else ""
        raise RunError(f"another process{number} is at work on {what}; wait for it, or choose another --output")


def try_lock(descriptor: int) -> bool:
    """Lock an open file if no one else has."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # some network file systems
        message = f"files cannot be locked here ({error}); see to it that no second fit writes to the same folder"
        warnings.warn(message, PromptCALWarning, stacklevel=2)
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
