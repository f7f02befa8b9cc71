"""Where the images of a shard are: encoded in memory, or at a path or URL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from promptcal.data import ImageSet
from promptcal.data.sources import ImageSource
from promptcal.shards import locations


@dataclass(frozen=True, eq=False)
class ImageChunk:
    """A few images of a shard: an id, a path or URL, and the image itself for each."""

    ids: list[str]
    paths: list[str]
    images: ImageSet


@dataclass(frozen=True)
class BytesSource(ImageSource):
    """Encoded images in memory; None is a missing one."""

    contents: Sequence[bytes | None]

    def content(self, index: int) -> bytes:
        content = self.contents[index]
        if content is None:
            raise ValueError("there is no image")
        return content


@dataclass(frozen=True)
class LocationSource(ImageSource):
    """Images at paths or URLs."""

    places: Sequence[str]

    def content(self, index: int) -> bytes:
        return locations.read_location(self.places[index])


class Place(NamedTuple):
    """Where an image is: a file or URL; ``size`` bytes from ``offset`` of a tar; or a ``row`` of a parquet file."""

    location: str
    offset: int | None = None
    size: int = 0
    row: int | None = None
