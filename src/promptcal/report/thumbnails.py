"""Thumbnails of a run's images as sprite sheets: a report can be made when the images no longer exist.

Tiles are sorted by category, then from typical to doubtful, so a gallery needs few sheets.
"""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image
from pydantic import Field

from promptcal.data import ImageStore, StreamedImages
from promptcal.data.decoding import UnreadableImage, open_image
from promptcal.errors import RunError
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel, damaged

MAX_BYTES = 27_000_000  # all sheets: 36 MB in base64, which leaves 4 MB for the rest of a report of 40 MB
_TILES_ACROSS = 10
_PER_SHEET = _TILES_ACROSS**2
_BLOCK = 16  # pixels that WebP encodes together: tiles begin on a block, so no tile bleeds into the next
_QUALITIES = (80, 65, 50, 35, 20, 5)
_GREY = (128, 128, 128)
_INDEX = "index.json"


class ThumbnailIndex(JSONModel):
    """`index.json`: the size of the tiles and their distance in pixels, and the image in each tile."""

    side: Annotated[int, Field(ge=1)]
    pitch: Annotated[int, Field(le=512)]
    images: list[Annotated[int, Field(ge=0, lt=2**62)]]


@dataclass(frozen=True)
class Thumbnails:
    """Square tiles of ``side`` pixels, ``pitch`` apart, in WebP sheets; tile i shows image ``images[i]`` of the run."""

    images: np.ndarray
    side: int
    pitch: int
    sheets: list[bytes]

    @property
    def margin(self) -> int:
        """Pixels around each tile that repeat its border."""
        return (self.pitch - self.side) // 2

    def layout(self) -> dict[str, int]:
        sizes = {"side": self.side, "pitch": self.pitch, "margin": self.margin}
        return sizes | {"across": _TILES_ACROSS, "perSheet": _PER_SHEET}

    def tile(self, position: int) -> Image.Image:
        sheet, within = divmod(position, _PER_SHEET)
        row, column = divmod(within, _TILES_ACROSS)
        left, top = self.margin + column * self.pitch, self.margin + row * self.pitch
        return _open_sheet(self.sheets[sheet]).crop((left, top, left + self.side, top + self.side))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number, sheet in enumerate(self.sheets):
            files.write_bytes(folder / f"{number:04d}.webp", sheet)
        index = ThumbnailIndex(side=self.side, pitch=self.pitch, images=self.images.tolist())
        index.write(folder / _INDEX)  # last: then all sheets exist

    @classmethod
    def read(cls, folder: Path, n_images: int) -> "Thumbnails":
        """The thumbnails of a run with so many images; a `RunError` if they are missing or damaged."""
        index = ThumbnailIndex.read(folder / _INDEX)
        images = np.array(index.images, dtype=np.int64)
        check_positions(images, n_images, folder / _INDEX)
        if index.side > index.pitch:
            raise damaged(folder / _INDEX, "its tiles overlap")
        sheets = [folder / f"{number:04d}.webp" for number in range(-(-len(images) // _PER_SHEET))]
        try:
            return cls(images, index.side, index.pitch, [sheet.read_bytes() for sheet in sheets])
        except OSError as error:
            raise damaged(folder, error) from error


def check_positions(images: np.ndarray, n_images: int, file: Path) -> None:
    """Reject a file that names an image twice or one that the run does not have."""
    if len(np.unique(images)) < len(images) or not ((images >= 0) & (images < n_images)).all():
        raise damaged(file, "it shows images that the run does not have")


@lru_cache(maxsize=8)
def _open_sheet(sheet: bytes) -> Image.Image:
    try:
        return open_image(io.BytesIO(sheet)).convert("RGB")
    except Exception as error:  # PIL raises many kinds of errors on damaged files
        raise RunError(f"a sheet of thumbnails is damaged ({error}); fit again with --overwrite") from error


def make_thumbnails(
    source: ImageStore | StreamedImages, images: np.ndarray, on_progress: Callable[[int], None] = lambda done: None
) -> Thumbnails:
    """Tiles of these images in this order; an image that cannot be read is grey."""
    side = _side(source, images)
    pitch = -(-(side + 2) // _BLOCK) * _BLOCK
    margin = (pitch - side) // 2
    padding = ((margin, pitch - side - margin), (margin, pitch - side - margin), (0, 0))
    sheets = []
    for first in range(0, len(images), _PER_SHEET):
        part = images[first : first + _PER_SHEET]
        rows = -(-len(part) // _TILES_ACROSS)
        canvas = np.zeros((rows * pitch, _TILES_ACROSS * pitch, 3), dtype=np.uint8)
        for position, image in enumerate(part):
            try:
                square = centre_square(source.image(int(image)), side)
            except (UnreadableImage, OSError):
                square = np.full((side, side, 3), _GREY, dtype=np.uint8)
            row, column = divmod(position, _TILES_ACROSS)
            cell = canvas[row * pitch : (row + 1) * pitch, column * pitch : (column + 1) * pitch]
            cell[:] = np.pad(square, padding, mode="edge")
            on_progress(first + position + 1)
        sheets.append(_encode(canvas, MAX_BYTES * len(part) // len(images)))
    return Thumbnails(np.asarray(images, dtype=np.int64), side, pitch, sheets)


def _side(source: ImageStore | StreamedImages, images: np.ndarray) -> int:
    """The fewer images, the larger the tiles, but never larger than the images."""
    largest = 222 if len(images) <= 500 else 126 if len(images) <= 2500 else 94
    for image in images:
        with suppress(UnreadableImage, OSError):
            return max(8, min(largest, *source.image(int(image)).shape[:2]))
    return 8


def centre_square(image: np.ndarray, side: int) -> np.ndarray:
    """The centre square of an image, resized to ``side`` pixels."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    square = Image.fromarray(np.ascontiguousarray(image[top : top + shorter, left : left + shorter]))
    return np.asarray(square.resize((side, side), Image.Resampling.BICUBIC))


def _encode(canvas: np.ndarray, max_bytes: int) -> bytes:
    """WebP in the best quality that is small enough."""
    image = Image.fromarray(canvas)
    for quality in _QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, format="WEBP", quality=quality, method=2)
        if buffer.tell() <= max_bytes:
            break
    return buffer.getvalue()
