"""Small pictures of a run's images as sprite sheets, so that a report can be made when the images are gone.

Tiles lie by category, from its most typical image to its most doubtful, so that a gallery touches few sheets. A run
of more than `MOST_IMAGES` keeps pictures of so many, spread over the categories.
"""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from promptcal.data.decoding import UnreadableImage, open_image
from promptcal.errors import RunError
from promptcal.runtime import files

if TYPE_CHECKING:
    from promptcal.run.inference import Assignments

MOST_IMAGES = 10_000
MOST_BYTES = 27_000_000  # of all sheets together: 36 MB in base64, which leaves 4 MB of 40 for the rest of a report
_PER_CATEGORY = 20  # pictures that even a small category of a large run keeps
_TILES_ACROSS = 10
_BLOCK = 16  # pixels that image codecs treat together: tiles begin on such a border, so that none bleeds into another
_QUALITIES = (80, 65, 50, 35, 20, 5)
_LARGEST_PITCH = 512
_MISSING = (128, 128, 128)


class Pictures(Protocol):
    """A store of decoded images, of whatever kind."""

    def __len__(self) -> int: ...

    def image(self, index: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Thumbnails:
    """Square tiles of ``side`` pixels, ``pitch`` apart, in WebP sheets; tile i shows image ``images[i]`` of the run."""

    images: np.ndarray
    side: int
    pitch: int
    sheets: list[bytes]

    @property
    def per_sheet(self) -> int:
        return _TILES_ACROSS**2

    @property
    def margin(self) -> int:
        """Pixels around each tile that repeat its border."""
        return (self.pitch - self.side) // 2

    def layout(self) -> dict[str, int]:
        return {
            "side": self.side,
            "pitch": self.pitch,
            "margin": self.margin,
            "across": _TILES_ACROSS,
            "perSheet": self.per_sheet,
        }

    def tile(self, place: int) -> Image.Image:
        sheet, within = divmod(place, self.per_sheet)
        row, column = divmod(within, _TILES_ACROSS)
        left, top = self.margin + column * self.pitch, self.margin + row * self.pitch
        return _opened(self.sheets[sheet]).crop((left, top, left + self.side, top + self.side))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number, sheet in enumerate(self.sheets):
            files.write_bytes(folder / f"{number:04d}.webp", sheet)
        index = {"side": self.side, "pitch": self.pitch, "sheets": len(self.sheets), "images": self.images.tolist()}
        files.write_text(folder / "index.json", json.dumps(index) + "\n")  # last: where it is, the sheets are

    @classmethod
    def read(cls, folder: Path) -> "Thumbnails | None":
        """None where there are none."""
        if not (folder / "index.json").is_file():
            return None
        try:
            index: dict[str, Any] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            images = np.array(index["images"], dtype=np.int64)
            side, pitch = int(index["side"]), int(index["pitch"])
            if images.ndim != 1 or not 0 < side <= pitch <= _LARGEST_PITCH:
                raise ValueError("its measures")
            n_sheets = -(-len(images) // _TILES_ACROSS**2)
            sheets = [(folder / f"{number:04d}.webp").read_bytes() for number in range(n_sheets)]
            return cls(images, side, pitch, sheets)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise RunError(f"{folder} is damaged ({error}); delete it, and the pictures are made anew") from error


@lru_cache(maxsize=8)
def _opened(sheet: bytes) -> Image.Image:
    return open_image(io.BytesIO(sheet)).convert("RGB")


def chosen_images(assignments: "Assignments", most: int = MOST_IMAGES) -> np.ndarray:
    """Which images to show, by category and confidence: all, or evenly from typical to doubtful in each category."""
    by_category = []
    for cluster in range(len(assignments.names)):
        members = np.flatnonzero(assignments.clusters == cluster)
        by_category.append(members[np.argsort(-assignments.confidence[members], kind="stable")])
    shares = _shares(np.array([len(members) for members in by_category]), most)
    spread = [
        members[np.linspace(0, len(members) - 1, share).round().astype(int)]
        for members, share in zip(by_category, shares, strict=True)
        if share
    ]
    return np.concatenate(spread) if spread else np.empty(0, dtype=np.int64)


def _shares(sizes: np.ndarray, most: int) -> np.ndarray:
    """How many of each category: proportional to its size, but a few of each."""
    if sizes.sum() <= most:
        return sizes
    floor = np.minimum(sizes, max(1, min(_PER_CATEGORY, most // len(sizes))))
    room = max(0, most - int(floor.sum()))
    return floor + ((sizes - floor) * room / (sizes - floor).sum()).astype(int)


def make_thumbnails(
    pictures: Pictures,
    images: np.ndarray,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
    on_missing: Callable[[int], None] = lambda image: None,
) -> Thumbnails:
    """Tiles of these images in this order; one that cannot be read any more is grey and told."""
    side = _side(pictures, images)
    pitch = -(-(side + 2) // _BLOCK) * _BLOCK
    margin = (pitch - side) // 2
    around = ((margin, pitch - side - margin), (margin, pitch - side - margin), (0, 0))
    sheets = []
    for first in range(0, len(images), _TILES_ACROSS**2):
        part = images[first : first + _TILES_ACROSS**2]
        rows = -(-len(part) // _TILES_ACROSS)
        canvas = np.zeros((rows * pitch, _TILES_ACROSS * pitch, 3), dtype=np.uint8)
        for place, image in enumerate(part):
            try:
                square = _square(pictures.image(int(image)), side)
            except (UnreadableImage, OSError):
                on_missing(int(image))
                square = np.full((side, side, 3), _MISSING, dtype=np.uint8)
            row, column = divmod(place, _TILES_ACROSS)
            spot = canvas[row * pitch : (row + 1) * pitch, column * pitch : (column + 1) * pitch]
            spot[:] = np.pad(square, around, mode="edge")
            on_progress(first + place + 1)
        sheets.append(_encoded(canvas, MOST_BYTES * len(part) // len(images)))
    return Thumbnails(np.asarray(images, dtype=np.int64), side, pitch, sheets)


def _side(pictures: Pictures, images: np.ndarray) -> int:
    """The fewer the images, the larger; never larger than they are."""
    largest = 222 if len(images) <= 500 else 126 if len(images) <= 2500 else 94
    for image in images:
        with suppress(UnreadableImage, OSError):
            return max(8, min(largest, *pictures.image(int(image)).shape[:2]))
    return 8


def _square(picture: np.ndarray, side: int) -> np.ndarray:
    """The centre square of an image at tile size."""
    height, width = picture.shape[:2]
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    square = Image.fromarray(np.ascontiguousarray(picture[top : top + shorter, left : left + shorter]))
    return np.asarray(square.resize((side, side), Image.Resampling.BICUBIC))


def _encoded(canvas: np.ndarray, most_bytes: int) -> bytes:
    """WebP of the best quality that takes no more than its share of the room."""
    picture = Image.fromarray(canvas)
    data = b""
    for quality in _QUALITIES:
        buffer = io.BytesIO()
        picture.save(buffer, format="WEBP", quality=quality, method=2)
        data = buffer.getvalue()
        if len(data) <= most_bytes:
            break
    return data
