"""What a file is, and its content up to a limit, so that a damaged or hostile file does not fill the memory."""

import errno
import os
from pathlib import Path

MAX_YAML = 2**20  # bytes; to parse so many takes seconds
MAX_JSON = 2**30  # the names of ten million images have less


def is_special(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device, or a link to one, or is in /dev, where a file would replace one."""
    if os.path.realpath(path.parent) == "/dev":
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file; `OSError` if it has more than ``most`` bytes, of which no more are read."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= most:
            content = file.read(most + 1)  # a device has no size
            if len(content) <= most:
                return content
    raise OSError(errno.EFBIG, f"it has more than {most / 2**20:,.0f} MB", str(path))
