"""The core: what is done with one input shard, in whatever process an engine calls it.

`embed_shard` and `assign_shard` depend on nothing but the shard and the model, and may be called again at any time: the
output has the name of the input, and is renamed into place when it is complete.
"""

import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from promptcal.errors import DataError, PromptCALError, TryAgainError, shorten
from promptcal.shards.assigner import Assigner
from promptcal.shards.decoders import Decoders
from promptcal.shards.embedder import EmbeddedBlock, Embedder
from promptcal.shards.embedding_shards import embedded_blocks
from promptcal.shards.full_disk import described
from promptcal.shards.manifest import InputShard, ShardEntry, UnreadableEntry, versions
from promptcal.shards.shard_files import embedding_column, write_entry, write_shard
from promptcal.shards.shard_folder import ShardFolder
from promptcal.shards.shard_images import image_chunks

_IMAGES_AT_ONCE = 16  # that are decoded as one piece of work
# Errors of the output that waiting does not remove: no permission, or something else at the name of a shard.
_LASTING = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENOENT),
    *(errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.EMLINK),
}


@dataclass(frozen=True)
class LoadedModel:
    """What computes the columns of a shard. Without an ``assigner``, images are only embedded."""

    width: int
    embedder: Embedder | None = None
    assigner: Assigner | None = None


class ShardModel(Protocol):
    """A model that each process loads itself; it is small and can be pickled."""

    def identity(self) -> dict[str, Any]:
        """What distinguishes its outputs from those of other models and options."""
        ...

    def load(self, device: str | None) -> LoadedModel: ...


@dataclass(frozen=True)
class ShardResult:
    """A finished shard, or why it could not be finished.

    ``problem``: "input" if this shard is damaged and others may not be, "access" if it could not be read at this
    moment, "disk" if none can be written now, "output" if none can be written before the user changes something.
    """

    name: str
    rows: int = 0
    unreadable: int = 0
    problem: Literal["input", "access", "disk", "output"] | None = None
    message: str = ""


def embed_shard(shard: InputShard, model: LoadedModel, folder: ShardFolder, decoders: Decoders) -> ShardEntry:
    """Embed the images of a shard and, if the model has an assigner, assign them to categories."""
    assert model.embedder is not None
    faults: list[tuple[str, str]] = []
    chunks = decoders.map(image_chunks(shard, _IMAGES_AT_ONCE), model.embedder.size)
    return _written(shard, model, folder, model.embedder.blocks(chunks, faults), faults, with_embeddings=True)


def assign_shard(shard: InputShard, model: LoadedModel, folder: ShardFolder) -> ShardEntry:
    """Assign the embeddings of a shard to categories; the embeddings are not copied."""
    return _written(shard, model, folder, embedded_blocks(shard, model.width), [], with_embeddings=False)


def _written(
    shard: InputShard,
    model: LoadedModel,
    folder: ShardFolder,
    blocks: Iterator[EmbeddedBlock],
    faults: list[tuple[str, str]],
    *,
    with_embeddings: bool,
) -> ShardEntry:
    began = time.perf_counter()
    tables = _tables(shard, model, blocks, with_embeddings)
    rows, size, digest = write_shard(folder, shard.name, tables)
    if faults and not rows:
        folder.file(shard.name).unlink()
        name, reason = faults[0]
        raise DataError(f"none of the {len(faults)} images of {shard.location} can be read, such as {name} ({reason})")
    entry = ShardEntry(
        name=shard.name,
        input=shard.location,
        rows=rows,
        bytes=size,
        sha256=digest,
        seconds=round(time.perf_counter() - began, 3),
        versions=versions(),
        unreadable=[UnreadableEntry(id=name, reason=reason) for name, reason in faults],
    )
    write_entry(folder, entry)
    return entry


def _tables(
    shard: InputShard, model: LoadedModel, blocks: Iterator[EmbeddedBlock], with_embeddings: bool
) -> Iterator[dict[str, Any]]:
    """The columns of each block; an empty shard has one block without rows, which gives the schema."""
    import torch

    ids: set[str] = set()
    is_empty = True
    for block in blocks:
        _add_distinct(ids, block.ids, shard)
        yield _columns(block, model, with_embeddings)
        is_empty = False
    if is_empty:
        yield _columns(EmbeddedBlock([], [], torch.empty(0, model.width)), model, with_embeddings)


def _add_distinct(ids: set[str], more: list[str], shard: InputShard) -> None:
    """Add ids to those of a shard; a `DataError` that names the first one that it has twice."""
    for name in more:
        if name in ids:
            raise DataError(f"{shard.location} has the id {shorten(name)} twice; an id names one image")
        ids.add(name)


def _columns(block: EmbeddedBlock, model: LoadedModel, with_embeddings: bool) -> dict[str, Any]:
    import pyarrow as pa

    columns: dict[str, Any] = {"id": pa.array(block.ids, pa.string()), "path": pa.array(block.paths, pa.string())}
    if with_embeddings:
        columns["embedding"] = embedding_column(block.features.cpu().numpy())
    if model.assigner is not None:
        columns |= model.assigner.columns(block.ids, block.features)
    return columns


@dataclass(frozen=True)
class ShardTask:
    """What an engine calls in its processes with each shard. It can be pickled."""

    model: ShardModel
    folder: Path
    device: str | None

    def run(self, shard: InputShard, loaded: LoadedModel, decoders: Decoders) -> ShardResult:
        folder = ShardFolder(self.folder)
        try:
            if shard.kind == "embeddings":
                entry = assign_shard(shard, loaded, folder)
            else:
                entry = embed_shard(shard, loaded, folder, decoders)
        except TryAgainError as error:
            return ShardResult(shard.name, problem="access", message=str(error))
        except PromptCALError as error:
            return ShardResult(shard.name, problem="input", message=str(error))
        except OSError as error:
            if error.errno is None:
                raise
            finished = folder.entry(shard.name)  # by another command, which removed what this one was writing
            if finished is None:
                problem: Literal["disk", "output"] = "output" if error.errno in _LASTING else "disk"
                return ShardResult(shard.name, problem=problem, message=described(error))
            entry = finished
        return ShardResult(entry.name, entry.rows, len(entry.unreadable))
