"""Embeddings in parquet shards: of `promptcal embed`, or of another program."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from promptcal.errors import DataError, shorten
from promptcal.shards.embedder import EmbeddedBlock
from promptcal.shards.manifest import InputShard
from promptcal.shards.parquet_images import ID_COLUMNS, id_texts, opened_parquet

_FEATURES = ("embedding", "embeddings", "features", "feature", "vector", "vectors")
_ROWS = 8192


def embedding_columns(schema: Any, location: str) -> tuple[str, str, str | None]:
    """The names of the columns of ids, of embeddings and of paths, if there is one."""
    from pyarrow import types

    def is_features(kind: Any) -> bool:
        is_number = types.is_fixed_size_list(kind) and (
            types.is_floating(kind.value_type) or types.is_integer(kind.value_type)
        )
        return bool(is_number and kind.list_size)

    names = {name.lower(): name for name in reversed(schema.names)}
    lists = [names[n] for n in _FEATURES if n in names and is_features(schema.field(names[n]).type)]
    ids = [names[n] for n in (*ID_COLUMNS, "path") if n in names]
    if not lists or not ids:
        held = shorten(", ".join(schema.names), 200) or "no columns"
        raise DataError(f"{location} needs the columns id and embedding (a fixed-size list of numbers); it has {held}")
    return ids[0], lists[0], names.get("path")


def embedded_blocks(shard: InputShard, width: int) -> Iterator[EmbeddedBlock]:
    """The rows of a shard as vectors of length 1."""
    first = 0
    with opened_parquet(shard.location) as file:
        id_name, list_name, path_name = embedding_columns(file.schema_arrow, shard.location)
        found = file.schema_arrow.field(list_name).type.list_size
        if found != width:
            raise DataError(
                f"{shard.location} has embeddings of {found} numbers and the run has {width}; give embeddings of the "
                "same model"
            )
        columns = list(dict.fromkeys(name for name in (id_name, list_name, path_name) if name is not None))
        for batch in file.iter_batches(_ROWS, columns=columns):
            ids = id_texts(batch.column(id_name), id_name, shard.location, first)
            paths = ids if path_name is None else [str(value) for value in batch.column(path_name).to_pylist()]
            yield EmbeddedBlock(ids, paths, unit_rows(batch.column(list_name), width, shard.location, first))
            first += len(ids)


def unit_rows(column: Any, width: int, location: str, first: int) -> torch.Tensor:
    """A column of lists as float32 vectors of length 1."""
    values = column.flatten()
    if column.null_count or values.null_count or len(values) != len(column) * width:
        raise DataError(f"{location} has rows without an embedding; delete them")
    rows = torch.from_numpy(values.to_numpy(zero_copy_only=False).astype(np.float32)).view(len(column), width)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    usable = torch.isfinite(norms) & (norms > 0)
    if not usable.all():
        row = first + int((~usable).int().argmax())
        raise DataError(f"row {row} of {location} has a value that is not finite, or only zeros; delete it")
    return rows.div_(norms)
