"""A full disk, after which the same command continues as soon as there is space."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from promptcal.errors import TryAgainError

_FULL = {errno.ENOSPC, errno.EDQUOT}


def described(error: OSError) -> str:
    """What is wrong, and with which file."""
    where = f" ({error.filename})" if error.filename else ""
    reason = "the disk is full" if error.errno in _FULL else error.strerror or str(error)
    return f"{reason}{where}"


@contextmanager
def explained_disk_errors(command: str = "the same command") -> Iterator[None]:
    """A `TryAgainError` if the disk is full or fails at this moment; other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in {*_FULL, errno.EIO}:
            raise
        remedy = "free some space" if error.errno in _FULL else "check the disk"
        raise TryAgainError(
            f"{described(error)}: finished shards are kept; {remedy}, then run {command} again"
        ) from error
