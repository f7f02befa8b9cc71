"""Read whole files with a limit on their size, so that a damaged or hostile one does not fill the memory."""

import errno
import os
from pathlib import Path

MAX_YAML = 2**20  # bytes; to parse so many takes seconds
MAX_JSON = 2**30  # the names of ten million images have less


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file; `OSError` if it has more than ``most`` bytes, of which no more are read."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= most:
            content = file.read(most + 1)  # a device has no size
            if len(content) <= most:
                return content
    raise OSError(errno.EFBIG, f"it has more than {most / 2**20:,.0f} MB", str(path))
