"""Whether all ids of many shards differ, with a few bytes of memory for each row.

The ids are hashed to 64 bits, and only ids with equal hashes are compared. Of very many rows, a part of the hashes is
in memory at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from promptcal.errors import DataError, shorten
from promptcal.shards.manifest import InputShard
from promptcal.shards.parquet_images import opened_parquet
from promptcal.shards.shard_folder import ShardFolder

_HASHES_AT_ONCE = 2**26  # 0.5 GB, and twice that when they are put together
_ROWS = 2**16
_LONGEST = 2**14  # bytes of an id
_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a


def check_ids_differ(
    folder: ShardFolder,
    shards: Sequence[InputShard],
    rows: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    at_once: int = _HASHES_AT_ONCE,
) -> None:
    """A `DataError` that names the id and its shards if two rows have the same id.

    ``on_progress`` gets how many shards were read, and how many are read in all.
    """
    parts = max(1, -(-rows // at_once))
    for part in range(parts):
        found = [np.empty(0, dtype=np.uint64)]
        for i, shard in enumerate(shards):
            for ids in _ids(folder, shard):
                hashes = hash_texts(ids)
                found.append(hashes if parts == 1 else hashes[hashes % np.uint64(parts) == part])
            on_progress(part * len(shards) + i + 1, parts * len(shards))
        hashes = np.concatenate(found)
        found.clear()
        hashes.sort()
        twice = hashes[1:][hashes[1:] == hashes[:-1]]
        if len(twice):
            _compare(folder, shards, np.unique(twice))


def _compare(folder: ShardFolder, shards: Sequence[InputShard], suspects: np.ndarray) -> None:
    seen: dict[str, InputShard] = {}
    for shard in shards:
        for ids in _ids(folder, shard):
            rows = np.flatnonzero(np.isin(hash_texts(ids), suspects))
            for name in (str(ids[int(row)]) for row in rows):
                if name in seen:
                    raise DataError(
                        f"the id {shorten(name)} is in {seen[name].location} and in {shard.location}; an id names one "
                        "image, so rename it in one of them, or give them to two commands"
                    )
                seen[name] = shard


def _ids(folder: ShardFolder, shard: InputShard) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    place = folder.file(shard.name)
    with opened_parquet(str(place)) as file:
        for batch in file.iter_batches(_ROWS, columns=["id"]):
            if batch.schema.names != ["id"] or batch.schema.field(0).type != pa.string():
                raise DataError(f"{place} is damaged (it has no ids); remove it, then run the command again")
            batch.validate(full=True)  # Unicode
            if (pc.max(pc.binary_length(batch.column(0))).as_py() or 0) > _LONGEST:
                raise DataError(f"{place} is damaged (an id is too long); remove it, then run the command again")
            yield batch.column(0)


def hash_texts(texts: Any) -> np.ndarray:
    """64-bit FNV-1a hashes of an Arrow array of text, all rows at a time."""
    import pyarrow as pa

    array = texts.cast(pa.string())
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    hashes = np.full(len(array), _START, dtype=np.uint64)
    if data_buffer is None:
        return hashes
    data = np.frombuffer(data_buffer, np.uint8)
    lengths = offsets[1:] - offsets[:-1]
    for position in range(int(lengths.max(initial=0))):
        rows = slice(None) if int(lengths.min()) > position else np.flatnonzero(lengths > position)
        hashes[rows] = (hashes[rows] ^ data[offsets[:-1][rows] + position]) * _PRIME
    return hashes
