"""The images of an input shard, a few at a time, so that they can be decoded anywhere."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from promptcal.data import ImageSet
from promptcal.data.sources import FileSource, ImageSource
from promptcal.errors import DataError
from promptcal.shards import locations
from promptcal.shards.manifest import InputShard
from promptcal.shards.parquet_images import parquet_chunks, parquet_places
from promptcal.shards.shard_sources import ImageChunk, LocationSource, Place
from promptcal.shards.tar_images import tar_chunks, tar_places


def image_chunks(shard: InputShard, size: int) -> Iterator[ImageChunk]:
    """The images of a tar, a parquet file or a part of a list; a `DataError` if it is damaged."""
    return _CHUNKS[shard.kind](shard, size)


def image_places(shard: InputShard) -> Iterator[tuple[list[str], list[Place]]]:
    """The ids of the images and where they are, in blocks, in the order of `image_chunks`; no image is read."""
    return _PLACES[shard.kind](shard)


def _lines(shard: InputShard) -> Iterator[str]:
    with locations.opened(shard.location) as file:
        file.seek(shard.first)
        left = shard.last - shard.first
        while left > 0:
            line = file.readline(left)
            if not line:
                raise DataError(f"{shard.location} is shorter than when it was written; choose another --output")
            left -= len(line)
            yield line.decode("utf-8").rstrip("\n")


def _list_chunks(shard: InputShard, size: int) -> Iterator[ImageChunk]:
    for ids in _list_ids(shard, size):
        paths = paths_in(shard.root, ids)
        source: ImageSource = LocationSource(paths)
        if not any(map(locations.is_url, paths)):
            source = FileSource([Path(path) for path in paths])
        yield ImageChunk(ids, paths, ImageSet(ids, source))


def _list_places(shard: InputShard) -> Iterator[tuple[list[str], list[Place]]]:
    for ids in _list_ids(shard, 2**12):
        yield ids, [Place(path) for path in paths_in(shard.root, ids)]


def paths_in(root: str, names: Sequence[str]) -> list[str]:
    """The paths or URLs of names that are relative to ``root``."""
    return [locations.beside(f"{root}/", name) if root else name for name in names]


def _list_ids(shard: InputShard, size: int) -> Iterator[list[str]]:
    ids: list[str] = []
    for line in _lines(shard):
        ids.append(line)
        if len(ids) == size:
            yield ids
            ids = []
    if ids:
        yield ids


_CHUNKS = {"list": _list_chunks, "tar": tar_chunks, "parquet": parquet_chunks}
_PLACES = {"list": _list_places, "tar": tar_places, "parquet": parquet_places}
