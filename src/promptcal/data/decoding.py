"""Opening images safely: common picture formats only, a limit on the number of pixels, conversion to 8-bit RGB."""

import functools
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps

# Pillow detects the format from the content, not the name, and runs an interpreter on PostScript. These need none.
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
HEIC_REMEDY = "install pillow-heif to read HEIC images: pip install 'promptcal[heic]'"
MAX_PIXELS = 89_478_485  # Pillow warns of a decompression bomb above this number
_LARGE = 16_000_000  # pixels; decoding such an image needs about a GB, so one is decoded at a time

_large_image_lock = threading.Lock()


class UnreadableImage(Exception):
    """The reason why one image could not be decoded."""


@functools.cache
def reads_heic() -> bool:
    """Whether HEIC images can be read; Pillow reads them once pillow-heif is registered."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def open_image(source: str | Path | BinaryIO) -> Image.Image:
    """The image, opened by its header; PIL decodes the pixels later."""
    image = Image.open(source, formats=(*FORMATS, "HEIF") if reads_heic() else FORMATS)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise ValueError(f"of {image.width} x {image.height} pixels, over {MAX_PIXELS // 10**6} million in all")
    return image


def is_image(path: Path) -> bool:
    """Whether a file has the header of a supported image format."""
    try:
        with open_image(path):
            return True
    except Exception:  # Pillow raises any exception on other files
        return False


def large_image_lock(image: Image.Image) -> AbstractContextManager[Any]:
    """If the image is large, wait until no other thread decodes a large image."""
    return _large_image_lock if image.width * image.height >= _LARGE else nullcontext()


def _replace_lock() -> None:
    global _large_image_lock
    _large_image_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # a child forked while the lock was held would wait forever
    os.register_at_fork(after_in_child=_replace_lock)


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB, rotated upright; transparent pixels become white."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):  # older Pillow reads 16-bit PNG as I
        kind = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise UnreadableImage(f"{kind} pixels have no fixed range; save it with 8 or 16 bits")
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # 16-bit grey: PIL's conversion would clip instead of scaling
        image = Image.fromarray(_scale_16_to_8_bits(np.array(image)))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _scale_16_to_8_bits(pixels: np.ndarray) -> np.ndarray:
    """Divide by 257 and round (exact halves do not occur); in place to save memory."""
    pixels = pixels.astype(np.int32)
    pixels.clip(0, 65535, out=pixels)
    pixels += 128
    pixels //= 257
    return pixels.astype(np.uint8)
