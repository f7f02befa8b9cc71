"""Standard input, output and error of a program that was started without them, or whose reader has ended."""

import os
import sys

EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, as of other programs


def open_closed_streams() -> None:
    """Open what is closed: otherwise the next file that is opened would get its number, and what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
