"""Images in webdataset tars: uncompressed tar files. The id of a member is its name without the last suffix."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from promptcal.data import ImageSet
from promptcal.data.feature_files import check_id_texts
from promptcal.data.image_files import HEIC_SUFFIXES, SUFFIXES
from promptcal.data.sources import ArchiveSource
from promptcal.errors import DataError, shorten
from promptcal.shards import locations
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_sources import BytesSource, ImageChunk, Place

_BLOCK = tarfile.BLOCKSIZE


class Member(NamedTuple):
    id: str
    name: str
    offset: int
    size: int


def tar_members(location: str, file: BinaryIO) -> list[Member]:
    """The images in a tar; other files in it, such as captions, are ignored. A truncated tar is a `DataError`."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            entries = [(m.name, m.offset_data, m.size, m.issparse()) for m in tar if m.isfile()]
        length = file.seek(0, io.SEEK_END)
        file.seek(max(0, length - _BLOCK))
        end = file.read()
    except Exception as error:  # a damaged header can raise any
        if locations.is_url(location) and locations.may_pass(error):
            raise
        raise _damaged(location, error) from error
    if end.strip(b"\0"):  # every writer ends with two empty blocks
        raise _damaged(location, "it has no end")
    suffixes = SUFFIXES | HEIC_SUFFIXES
    members = []
    for name, offset, size, is_sparse in entries:
        suffix = PurePosixPath(name).suffix
        if suffix.lower() not in suffixes:
            continue
        if is_sparse or not 0 <= offset <= offset + size <= length:
            raise _damaged(location, f"{shorten(ascii(name))} has holes, or is larger than the tar")
        members.append(Member(name[: -len(suffix)], name, offset, size))
    check_id_texts([member.id for member in members], location)
    return members


def _damaged(location: str, reason: object) -> DataError:
    return DataError(
        f"{location} is truncated or no uncompressed tar ({shorten(reason, 100)}); write it again, then run the same "
        "command again"
    )


def tar_chunks(shard: InputShard, size: int) -> Iterator[ImageChunk]:
    """A local tar is read where its images are decoded; a remote one is read here once."""
    location = shard.location
    is_remote = locations.is_url(location)
    with locations.opened(location) as file:
        content = io.BytesIO(file.read()) if is_remote else file
        members = tar_members(location, content)
    archive = content.getbuffer() if isinstance(content, io.BytesIO) else None
    for first in range(0, len(members), size):
        part = members[first : first + size]
        spans = [(member.offset, member.size) for member in part]
        source = (
            ArchiveSource(Path(location), spans)
            if archive is None
            else BytesSource([bytes(archive[offset : offset + length]) for offset, length in spans])
        )
        ids = [member.id for member in part]
        yield ImageChunk(ids, [f"tar://{m.name}::{location}" for m in part], ImageSet(ids, source))


def tar_places(shard: InputShard) -> Iterator[tuple[list[str], list[Place]]]:
    with locations.opened(shard.location) as file:
        members = tar_members(shard.location, file)
    yield [m.id for m in members], [Place(shard.location, m.offset, m.size) for m in members]
