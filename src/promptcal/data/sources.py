"""Where the images of an `ImageSet` are stored. Sources are objects, not functions, so that they can be pickled."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from promptcal.data.decoding import open_image, to_rgb
from promptcal.runtime.reading import check_is_file, read_image

_TILE, _LINE, _LINES = 96, 12, 5  # of a text: pixels, characters of a line, lines


class ImageSource(Protocol):
    """Images by position. Its methods may raise any exception for an image that cannot be read."""

    def content(self, index: int) -> bytes:
        """The bytes that determine the image."""
        ...

    def open(self, index: int) -> Image.Image:
        """The image, opened by its header; PIL decodes the pixels later."""
        return open_image(BytesIO(self.content(index)))

    def size(self, index: int) -> tuple[int, int]:
        """Width and height by the header, before any rotation."""
        with self.open(index) as image:
            return image.size

    def path(self, index: int) -> Path | None:
        """The image's file; None if there is no separate file."""
        return None


@dataclass(frozen=True)
class FileSource(ImageSource):
    files: Sequence[Path]

    def open(self, index: int) -> Image.Image:
        check_is_file(self.files[index])
        return open_image(self.files[index])

    def content(self, index: int) -> bytes:
        check_is_file(self.files[index])
        return self.files[index].read_bytes()

    def path(self, index: int) -> Path:
        return self.files[index]


@dataclass(frozen=True)
class ArchiveSource(ImageSource):
    """Encoded images inside one uncompressed file or byte array, located by (offset, size)."""

    archive: Path | np.ndarray
    spans: Sequence[tuple[int, int]]

    def content(self, index: int) -> bytes:
        offset, size = self.spans[index]
        if isinstance(self.archive, np.ndarray):
            return self.archive[offset : offset + size].tobytes()
        with self.archive.open("rb") as file:
            file.seek(offset)
            return read_image(file, size)


@dataclass(frozen=True)
class ArraySource(ImageSource):
    """Decoded images, uint8 N x H x W (grey), N x H x W x 3 or N x H x W x 4 (RGBA)."""

    array: np.ndarray

    def open(self, index: int) -> Image.Image:
        return Image.fromarray(self.array[index])

    def content(self, index: int) -> bytes:
        return f"{self.array.shape[1:]}".encode() + self.array[index].tobytes()


@dataclass(frozen=True)
class PictureSource(ImageSource):
    """Images of PIL. They are copied, because an opened image is changed and closed."""

    pictures: Sequence[Image.Image]

    def open(self, index: int) -> Image.Image:
        picture = self.pictures[index]
        copy = picture.copy()
        copy.format = picture.format
        return copy

    def content(self, index: int) -> bytes:
        image = to_rgb(self.open(index))
        return f"{image.size}".encode() + image.tobytes()


@dataclass(frozen=True)
class SubsetSource(ImageSource):
    source: ImageSource
    indices: Sequence[int]

    def open(self, index: int) -> Image.Image:
        return self.source.open(self.indices[index])

    def content(self, index: int) -> bytes:
        return self.source.content(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        return self.source.size(self.indices[index])

    def path(self, index: int) -> Path | None:
        return self.source.path(self.indices[index])


@dataclass(frozen=True)
class TextSource(ImageSource):
    """Things that have no picture: a tile with a text."""

    texts: Sequence[str]

    def open(self, index: int) -> Image.Image:
        tile = Image.new("RGB", (_TILE, _TILE), (244, 244, 240))
        text = self.texts[index]
        lines = [text[i : i + _LINE] for i in range(0, min(len(text), _LINE * _LINES), _LINE)]
        draw = ImageDraw.Draw(tile)
        try:
            draw.text((6, 6), "\n".join(lines), fill=(40, 40, 40), font=ImageFont.load_default(13))
        except (UnicodeError, OSError):  # characters that the font lacks
            draw.text((6, 6), "\n".join(lines).encode("ascii", "replace"), fill=(40, 40, 40))
        return tile

    def content(self, index: int) -> bytes:
        return self.texts[index].encode()

    def size(self, index: int) -> tuple[int, int]:
        return _TILE, _TILE
