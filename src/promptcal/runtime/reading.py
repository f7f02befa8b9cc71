"""What a file is, and its content up to a limit, so that a damaged or hostile file does not fill the memory."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_YAML = 2**20  # bytes, which take seconds to parse
MAX_JSON = 2**28  # the results of half a million categories have less; parsed, it takes up to 3 GB
MAX_IMAGE = 2**30  # of an encoded image; the largest one that is decoded has 716 MB uncompressed


def is_special(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device, or a link to one, or is in /dev, where a file would replace one."""
    if os.path.realpath(path.parent) == "/dev":
        return True
    try:
        mode = os.stat(path).st_mode  # once, because another process may remove it
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_is_file(path: str | os.PathLike[str]) -> None:
    """Reject a pipe, from which a read would never return, and a device, which may have no end."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))


def read_image(file: BinaryIO, size: int | None = None) -> bytes:
    """The next ``size`` bytes of an open file, or all of them; a `ValueError` if that is more than any image has."""
    content = b""
    if size is None or size <= MAX_IMAGE:
        content = file.read(MAX_IMAGE + 1 if size is None else size)
        size = len(content)
    if size > MAX_IMAGE:
        raise ValueError(f"it has over {MAX_IMAGE >> 20:,} MB")
    return content


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file; `OSError` if it has more than ``most`` bytes, of which no more are read, or is a pipe."""
    check_is_file(path)
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= most:
            content = file.read(most + 1)  # it may have grown
            if len(content) <= most:
                return content
    raise OSError(errno.EFBIG, f"it has more than {most / 2**20:,.0f} MB", str(path))
