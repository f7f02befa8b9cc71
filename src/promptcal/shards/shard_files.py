"""Writing a shard of parquet, block by block, under a temporary name."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from promptcal.runtime import files
from promptcal.shards.manifest import ShardEntry
from promptcal.shards.shard_folder import ShardFolder

_PLAIN = "embedding"  # halves of random signs and exponents: compressing them takes time and saves nothing


def embedding_column(features: np.ndarray) -> Any:
    """Rows of numbers as a fixed-size list of halves."""
    import pyarrow as pa

    halves = pa.array(np.ascontiguousarray(features, dtype=np.float16).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(halves, features.shape[1])


def write_shard(folder: ShardFolder, name: str, blocks: Iterator[dict[str, Any]]) -> tuple[int, int, str]:
    """Write blocks of columns; the number of rows, of bytes, and the SHA-256. The first block gives the schema."""
    rows = 0

    def write(temporary: Path) -> None:
        nonlocal rows
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        first = pa.table(next(blocks))
        compressed = {column: "none" if column == _PLAIN else "zstd" for column in first.column_names}
        texts = [field.name for field in first.schema if pa.types.is_dictionary(field.type)]
        with closing(
            ParquetWriter(temporary, first.schema, compression=compressed, use_dictionary=texts, write_statistics=texts)
        ) as writer:
            table = first
            while table is not None:
                writer.write_table(table, row_group_size=len(table) or None)
                rows += len(table)
                columns = next(blocks, None)
                table = None if columns is None else pa.table(columns, schema=first.schema)

    file = folder.file(name)
    files.write_with(file, write)
    return rows, file.stat().st_size, files.file_digest(file)


def write_entry(folder: ShardFolder, entry: ShardEntry) -> None:
    entry.write(folder.entry_file(entry.name))
