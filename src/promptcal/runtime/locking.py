"""Lock files: one process at a time per run directory. The operating system releases a lock when its holder dies."""

import errno
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout, lock_descriptor

from promptcal.errors import PromptCALWarning, RunError, TryAgainError
from promptcal.runtime.files import check_only_name

_SAY_AFTER, _GIVE_UP_AFTER = 10.0, 3600.0  # seconds of waiting for a lock
_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``; raise a `RunError` that names ``what`` and the holder if another process holds it,
    or ``wait`` until that releases it: after some seconds a warning names the holder, and after an hour this is a
    `TryAgainError`.

    Forked worker processes do not inherit the lock. ``path`` contains the holder's process ID and host. Neither a
    symbolic link (filelock) nor a hard link at ``path`` lets the holder write to another file.
    """
    lock = FileLock(path, blocking=wait, fallback_to_soft=False, preserve_lock_file=True, on_acquired=_write_holder)
    try:
        if wait:
            _acquire_in_time(lock, path, what)
        else:
            lock.acquire()
    except Timeout as error:
        user = f"another process{_read_holder(path)}"
        raise RunError(f"{what} is in use by {user}; wait until it ends, or choose another --output") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):  # a symbolic or a hard link
            raise RunError(f"the lock {path} is a link, which may lead to another file; remove it") from error
        if error.errno not in _NOT_SUPPORTED:
            raise
        _warn_not_supported(error, _read_holder(path))
    try:
        yield
    finally:
        lock.release()


def _acquire_in_time(lock: BaseFileLock, path: Path, what: str) -> None:
    with suppress(Timeout):
        lock.acquire(timeout=_SAY_AFTER)
        return
    message = f"{what} is in use by another process{_read_holder(path)}; waiting until it is free"
    warnings.warn(message, PromptCALWarning, stacklevel=5)
    try:
        lock.acquire(timeout=_GIVE_UP_AFTER - _SAY_AFTER, poll_interval=min(1.0, _SAY_AFTER))
    except Timeout as error:
        raise TryAgainError(
            f"{what} is still in use by another process{_read_holder(path)}; run the same command again when that has "
            "ended"
        ) from error


def try_lock(descriptor: int) -> bool:
    """Lock an open file; False if another process holds its lock."""
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        _warn_not_supported(error)
        return True


def _write_holder(descriptor: int) -> None:
    check_only_name(descriptor)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())


def _read_holder(path: Path) -> str:
    """The process that wrote the lock file, with its host if that is another one; empty if it is not known."""
    try:
        with path.open("rb") as file:
            found = re.match(r"(\d{1,10})(?: ([\w.-]{1,255}))?\n", file.read(300).decode("ascii", "replace"))
    except OSError:  # Windows does not let others read a locked file
        return ""
    if found is None:
        return ""
    is_here = found[2] in (None, socket.gethostname())
    return f" (PID {found[1]})" if is_here else f" (PID {found[1]} on {found[2]})"


def _warn_not_supported(error: OSError, last_user: str = "") -> None:
    known = f", last used by a process{last_user}" if last_user else ""
    message = f"this file system does not support file locks ({error}){known}; do not start two fits with one --output"
    warnings.warn(message, PromptCALWarning, stacklevel=4)
