"""Thumbnails of a run's images as sprite sheets: a report can be made when the images no longer exist.

Tiles are sorted by category, then from typical to doubtful, so a gallery needs few sheets.
"""

import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image
from pydantic import Field

from promptcal.data import ImageSet
from promptcal.data.decoding import UnreadableImage, open_image
from promptcal.errors import RunError
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel, damaged

MAX_BYTES = 27_000_000  # all sheets: 36 MB in base64, which leaves 4 MB for the rest of a report of 40 MB
_LARGEST_SIDES = {500: 252, 2500: 188, None: 140}  # pixels of the longer side, by the largest number of images
_TILES_ACROSS = 10
_PER_SHEET = _TILES_ACROSS**2
_BLOCK = 16  # pixels that WebP encodes together: tiles begin on a block, so no tile bleeds into the next
_MARGIN = 2
_QUALITIES = (85, 75, 65, 50, 35, 20, 5)
_GREY = (128, 128, 128)
_INDEX = "index.json"
_Side = Annotated[int, Field(ge=1, le=512)]  # pixels


class ThumbnailIndex(JSONModel):
    """`index.json`: the distance of the tiles in pixels, the image in each tile, and its width and height there.

    Versions before 0.3 wrote squares of one ``side`` in the middle of their tiles.
    """

    pitch: _Side
    images: list[Annotated[int, Field(ge=0, lt=2**62)]]
    sizes: list[Annotated[list[_Side], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    side: _Side | None = None


@dataclass(frozen=True)
class Thumbnails:
    """Whole images in tiles that are ``pitch`` pixels apart, in WebP sheets.

    Tile i shows image ``images[i]`` of the run; ``sizes[i]`` are its width and height in the tile. ``margin`` are the
    pixels around each image that repeat its border.
    """

    images: np.ndarray
    sizes: np.ndarray
    pitch: int
    sheets: list[bytes]
    margin: int = _MARGIN

    def layout(self) -> dict[str, int]:
        return {"pitch": self.pitch, "margin": self.margin, "across": _TILES_ACROSS, "perSheet": _PER_SHEET}

    def tile(self, position: int) -> Image.Image:
        sheet, within = divmod(position, _PER_SHEET)
        row, column = divmod(within, _TILES_ACROSS)
        left, top = self.margin + column * self.pitch, self.margin + row * self.pitch
        width, height = map(int, self.sizes[position])
        return _open_sheet(self.sheets[sheet]).crop((left, top, left + width, top + height))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number, sheet in enumerate(self.sheets):
            files.write_bytes(folder / f"{number:04d}.webp", sheet)
        index = ThumbnailIndex(pitch=self.pitch, images=self.images.tolist(), sizes=self.sizes.tolist())
        index.write(folder / _INDEX)  # last: then all sheets exist

    @classmethod
    def read(cls, folder: Path, n_images: int) -> "Thumbnails":
        """The thumbnails of a run with ``n_images``; a `RunError` if they are missing or damaged."""
        index = ThumbnailIndex.read(folder / _INDEX)
        images = np.array(index.images, dtype=np.int64)
        check_positions(images, n_images, folder / _INDEX)
        sizes, margin = np.array(index.sizes, dtype=np.int64).reshape(-1, 2), _MARGIN
        if index.side is not None:
            sizes, margin = np.full((len(images), 2), index.side), (index.pitch - index.side) // 2
        if len(sizes) != len(images) or margin < 0 or (sizes > index.pitch - 2 * margin).any():
            raise damaged(folder / _INDEX, "its tiles overlap or have no size")
        sheets = [folder / f"{number:04d}.webp" for number in range(-(-len(images) // _PER_SHEET))]
        try:
            return cls(images, sizes, index.pitch, [sheet.read_bytes() for sheet in sheets], margin)
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
    source: ImageSet, images: np.ndarray, on_progress: Callable[[int], None] = lambda done: None
) -> Thumbnails:
    """Tiles of these images in this order, from the original files; an image that cannot be read is grey."""
    from promptcal.runtime import distributed

    side = _side(source, images)
    pitch = -(-(side + 2 * _MARGIN) // _BLOCK) * _BLOCK
    sheets: list[Future[bytes]] = []
    sizes: list[tuple[int, int]] = []
    quality: int | None = None
    with ThreadPoolExecutor(distributed.cores()) as threads:
        parts = [images[first : first + _PER_SHEET] for first in range(0, len(images), _PER_SHEET)]
        decoded = (threads.map(lambda i: _thumbnail(source, int(i), side), part) for part in parts)
        upcoming = next(decoded, iter(()))
        for part in parts:
            tiles, upcoming = upcoming, next(decoded, iter(()))  # decoded while this sheet is encoded
            rows = -(-len(part) // _TILES_ACROSS)
            canvas = np.zeros((rows * pitch, _TILES_ACROSS * pitch, 3), dtype=np.uint8)
            for position, pixels in enumerate(tiles):
                height, width = pixels.shape[:2]
                row, column = divmod(position, _TILES_ACROSS)
                cell = canvas[row * pitch : (row + 1) * pitch, column * pitch : (column + 1) * pitch]
                bottom, right = _MARGIN + height, _MARGIN + width
                cell[_MARGIN:bottom, _MARGIN:right] = pixels
                cell[:_MARGIN, _MARGIN:right], cell[bottom:, _MARGIN:right] = pixels[0], pixels[-1]
                cell[:, :_MARGIN], cell[:, right:] = cell[:, _MARGIN : _MARGIN + 1], cell[:, right - 1 : right]
                sizes.append((width, height))
                on_progress(len(sizes))
            most = MAX_BYTES * len(part) // len(images)
            if quality is None:  # every sheet would come to about the same one
                quality = _encode(canvas, most, 0)[1]
            sheets.append(threads.submit(lambda *given: _encode(*given)[0], canvas, most, quality))
        encoded = [sheet.result() for sheet in sheets]
    return Thumbnails(
        np.asarray(images, dtype=np.int64), np.array(sizes, dtype=np.int64).reshape(-1, 2), pitch, encoded
    )


def _side(source: ImageSet, images: np.ndarray) -> int:
    """The longer side of the tiles: the fewer images, the larger, but never larger than the largest image."""
    limit = next(side for most, side in _LARGEST_SIDES.items() if most is None or len(images) <= most)
    longest = 0
    for image in images:
        longest = max(longest, *(source.size(int(image)) or (0, 0)))
        if longest >= limit:
            return limit
    return max(8, longest)


def _thumbnail(source: ImageSet, index: int, side: int) -> np.ndarray:
    try:
        return np.asarray(source.thumbnail(index, side))
    except (UnreadableImage, OSError):
        return np.full((side, side, 3), _GREY, dtype=np.uint8)


def _encode(canvas: np.ndarray, max_bytes: int, first: int) -> tuple[bytes, int]:
    """WebP in the best quality that is small enough, from the ``first`` one on, and the number of that quality."""
    image = Image.fromarray(canvas)
    for number in range(first, len(_QUALITIES)):
        buffer = io.BytesIO()
        image.save(buffer, format="WEBP", quality=_QUALITIES[number], method=2)
        if buffer.tell() <= max_bytes:
            break
    return buffer.getvalue(), number
