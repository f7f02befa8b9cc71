"""Lock files: one process at a time per run directory. The operating system releases a lock when its holder dies."""

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from promptcal.errors import PromptCALWarning, RunError

_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; raise a `RunError` that names ``what`` if another process holds it.

    Forked worker processes do not inherit the lock. ``path`` contains the holder's process ID.
    """
    lock = FileLock(path, blocking=False, fallback_to_soft=False, preserve_lock_file=True, on_acquired=_write_own_pid)
    try:
        lock.acquire()
    except Timeout as error:
        user = f"another process{_read_pid(path)}"
        raise RunError(f"{what} is in use by {user}; wait until it ends, or choose another --output") from error
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        _warn_not_supported(error)
    try:
        yield
    finally:
        lock.release()


def try_lock(descriptor: int) -> bool:
    """Lock an open file; False if another process holds its lock."""
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        _warn_not_supported(error)
        return True


def _write_own_pid(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())


def _read_pid(path: Path) -> str:
    try:
        number = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # Windows does not let others read a locked file
        return ""
    return f" (PID {number})" if number else ""


def _warn_not_supported(error: OSError) -> None:
    message = f"this file system does not support file locks ({error}); do not start two fits with the same --output"
    warnings.warn(message, PromptCALWarning, stacklevel=4)
