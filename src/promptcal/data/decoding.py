"""Where the bytes of an image meet a decoder: plain picture formats only, and no more pixels than memory bears."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image

# Pillow goes by content, not by name, and would hand PostScript in a .jpg to an interpreter: these need none.
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 89_478_485  # from there on Pillow suspects a decompression bomb
_LARGE = 16_000_000  # pixels from which on images are decoded one after another, since each takes a GB on the way

_turn = threading.Lock()


def open_image(source: str | Path | BinaryIO) -> Image.Image:
    """The image by its header; its pixels are decoded when they are asked for."""
    image = Image.open(source, formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise ValueError(f"of {image.width} x {image.height} pixels, over {MOST_PIXELS // 10**6} million in all")
    return image


def is_image(path: Path) -> bool:
    """Whether a file begins as one of these pictures does."""
    try:
        with open_image(path):
            return True
    except Exception:  # Pillow fails in every way on what is none
        return False


@contextmanager
def turn_for(image: Image.Image) -> Iterator[None]:
    """Wait until no other thread decodes a large image, if this is one."""
    if image.width * image.height < _LARGE:
        yield
        return
    with _turn:
        yield


def _fresh_lock() -> None:
    global _turn
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):  # a process forked while the lock was held would wait for ever
    os.register_at_fork(after_in_child=_fresh_lock)
