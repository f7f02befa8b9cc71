"""Files of feature vectors, read block by block: npy, npz, parquet, arrow, safetensors and CSV. Nothing is unpickled.

A file says its number of rows and its width before its values are read, so that memory is limited by the size of a
block. A file that is damaged or holds something else is a `DataError`.
"""

import contextlib
import csv
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy_format
from safetensors import SafetensorError, safe_open

from promptcal.data.label_files import PATH_COLUMNS, normal_column
from promptcal.data.labels import is_unicode
from promptcal.errors import DataError, shorten
from promptcal.runtime.arguments import tensor_as_numpy
from promptcal.runtime.free_memory import free_host_memory

_FEATURE_NAMES = ("features", "feature", "embeddings", "embedding", "vectors", "vector", "x")
_ID_NAMES = ("ids", *PATH_COLUMNS, "paths", "names", "filenames", "files")
_BLOCK_BYTES = 2**21  # of a block of rows
_MAX_HEADER = 2**24  # characters of the first line of a CSV file
_MAX_ID = 4096  # characters
_MOST_EXPANDED = 200
_NAME_BYTES = 64  # of memory, for the name of a row
_SUFFIXES = ".npy, .npz, .parquet, .arrow, .feather, .safetensors, .csv, .tsv"


@dataclass(frozen=True)
class FeatureTable:
    """``n`` rows of ``width`` numbers. ``blocks`` reads them again each time, in order, as float arrays (rows x width).

    ``ids`` are None if the file names none.
    """

    n: int
    width: int
    blocks: Callable[[], Iterator[np.ndarray]]
    ids: list[str] | None = None


def read_feature_file(path: Path) -> FeatureTable:
    """The table of a file; the suffix says its format."""
    if not path.is_file():
        raise DataError(f"the feature file {path} does not exist; check the path")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"the format of {path} is not known; features are files that end in {_SUFFIXES}")
    with _readable(path):
        table = reader(path)
    return FeatureTable(table.n, table.width, lambda: _guarded(path, table), table.ids)


def _guarded(path: Path, table: FeatureTable) -> Iterator[np.ndarray]:
    """The blocks of a file that has as many rows as it says."""
    with _readable(path):
        n = 0
        for block in table.blocks():
            n += len(block)
            yield block
        if n != table.n:
            raise DataError(f"{path} has {n} rows instead of {table.n}; it was truncated, so write it again")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Damaged files raise many kinds of errors."""
    try:
        yield
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory; give fewer or shorter rows") from error
    except Exception as error:
        reason = shorten(" ".join(str(error).split()) or type(error).__name__, 200)
        raise DataError(f"{path} cannot be read ({reason}); it may be truncated, so write it again") from error


def rows_of_array(array: Any, name: str) -> FeatureTable:
    """The table of a NumPy array or tensor; ``name`` is what messages call it."""
    if isinstance(array, torch.Tensor):
        array = tensor_as_numpy("features", array)
    _check_array(array.shape, array.dtype, name)
    size = _rows_at_once(array.shape[1])
    n, width = array.shape
    return FeatureTable(n, width, lambda: (array[i : i + size] for i in range(0, n, size)))


def _check_array(shape: Sequence[int], dtype: np.dtype, name: str) -> None:
    if dtype.hasobject:
        raise DataError(f"{name} holds Python objects, which are never unpickled; save an array of numbers")
    if dtype.kind not in "fiu":
        raise DataError(f"{name} holds values of type {dtype}; features are numbers")
    if len(shape) != 2 or min(shape) < 1:
        raise DataError(f"{name} has the shape {tuple(shape)}; features are rows x numbers, at least one of each")


def _rows_at_once(width: int) -> int:
    return max(1, _BLOCK_BYTES // (8 * width))


def _read_npy(path: Path) -> FeatureTable:
    """It is not mapped: a mapped file that another process truncates kills the process that reads it."""
    with path.open("rb") as file:
        shape, dtype = _npy_header(file, str(path))
        _check_array(shape, dtype, str(path))
        start, n_bytes = file.tell(), os.fstat(file.fileno()).st_size
    n, width = shape
    if n_bytes - start < n * width * dtype.itemsize:
        raise DataError(f"{path} is truncated: it has not the {n} rows that it says; write it again")

    def blocks() -> Iterator[np.ndarray]:
        size = _rows_at_once(width)
        with path.open("rb") as file:
            file.seek(start)
            for first in range(0, n, size):
                block = np.fromfile(file, dtype, min(size, n - first) * width)
                yield block[: len(block) // width * width].reshape(-1, width)  # fewer rows if it was truncated

    return FeatureTable(n, width, blocks)


def _npy_header(file: Any, name: str) -> tuple[tuple[int, ...], np.dtype]:
    version = npy_format.read_magic(file)
    readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
    if version not in readers:
        raise DataError(f"{name} has an unknown version of the npy format; save it again")
    shape, is_by_column, dtype = readers[version](file)
    if is_by_column and len(shape) == 2 and min(shape) > 1:
        raise DataError(f"{name} is stored by columns; save numpy.ascontiguousarray of it")
    return shape, dtype


def _read_npz(path: Path) -> FeatureTable:
    """The only two-dimensional array, or the one with a usual name, and an array of ids, if there is one."""
    headers: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.file_size > max(_BLOCK_BYTES, _MOST_EXPANDED * member.compress_size):
                raise DataError(
                    f"{shorten(name)} in {path} expands to over {_MOST_EXPANDED} times its size, which no features do"
                )
            with archive.open(member) as file:
                shape, dtype = _npy_header(file, f"{name} in {path}")
                if not dtype.hasobject and math.prod(shape) * dtype.itemsize + file.tell() != member.file_size:
                    raise DataError(f"{name} in {path} has another size than its header says; write it again")
            headers[name] = shape, dtype
    chosen = _choose([name for name, (shape, _) in headers.items() if len(shape) == 2], list(headers), path)
    shape, dtype = headers[chosen]
    _check_array(shape, dtype, f"{chosen} in {path}")
    ids_name = next((n for n in _ID_NAMES for k in headers if k.lower() == n and len(headers[k][0]) == 1), None)
    ids = None
    if ids_name is not None:
        real = next(k for k in headers if k.lower() == ids_name)
        if headers[real][1].hasobject:
            raise DataError(f"{real} in {path} holds Python objects, which are never unpickled; save an array of text")
        with np.load(path, allow_pickle=False) as stored:
            ids = [_text(value) for value in stored[real].tolist()]

    def blocks() -> Iterator[np.ndarray]:
        size = _rows_at_once(shape[1])
        with zipfile.ZipFile(path) as archive, archive.open(f"{chosen}.npy") as file:
            _npy_header(file, str(path))
            for first in range(0, shape[0], size):
                n = min(size, shape[0] - first)
                data = file.read(n * shape[1] * dtype.itemsize)
                yield np.frombuffer(data, dtype).reshape(n, shape[1])

    return FeatureTable(shape[0], shape[1], blocks, ids)


def _choose(candidates: Sequence[str], all_names: Sequence[str], path: Path) -> str:
    """The only candidate, or the one with a usual name."""
    usual = [name for want in _FEATURE_NAMES for name in candidates if name.lower() == want]
    if usual:
        return usual[0]
    if len(candidates) == 1:
        return candidates[0]
    held = shorten(", ".join(all_names), 200) or "nothing"
    what = "several tables of numbers" if candidates else "no table of numbers"
    raise DataError(f"{path} has {what} ({held}); name the one with the features {_FEATURE_NAMES[0]!r}")


def _read_safetensors(path: Path) -> FeatureTable:
    def opened() -> Any:
        return safe_open(path, "pt")

    try:
        with opened() as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
            chosen = _choose([name for name, shape in shapes.items() if len(shape) == 2], list(shapes), path)
            first = file.get_slice(chosen)[:1]
    except SafetensorError as error:
        raise DataError(f"{path} cannot be read ({shorten(error, 200)}); write it again") from error
    if first.dtype == torch.bool or first.is_complex():
        raise DataError(f"{chosen} in {path} holds values of type {first.dtype}; features are numbers")
    n, width = shapes[chosen]
    _check_array((n, width), np.dtype(np.float32), f"{chosen} in {path}")
    size = _rows_at_once(width)

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, n, size):
            with opened() as file:  # again for each block, so that the pages of the others leave the memory
                yield file.get_slice(chosen)[start : start + size].float().numpy()

    return FeatureTable(n, width, blocks)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            "reading parquet and arrow files needs pyarrow; pip install 'promptcal[parquet]', or save the features as "
            "npy"
        ) from error
    return pyarrow


def _read_parquet(path: Path) -> FeatureTable:
    _pyarrow()
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        schema, n = file.schema_arrow, file.metadata.num_rows

    def batches(columns: list[str], size: int) -> Iterator[Any]:
        with ParquetFile(path) as file:
            yield from file.iter_batches(size, columns=columns)

    return _arrow_table(path, schema, n, batches)


def _read_arrow(path: Path) -> FeatureTable:
    """An IPC file (also called Feather), or an IPC stream."""
    pyarrow = _pyarrow()
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"

    def opened() -> Any:
        source = pyarrow.memory_map(str(path))
        return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)

    def record_batches() -> Iterator[Any]:
        reader = opened()
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader

    def batches(columns: list[str], size: int) -> Iterator[Any]:
        for batch in record_batches():
            part = batch.select(columns)
            part.validate(full=True)  # damaged offsets would lead to any place in the memory
            yield from (part.slice(i, size) for i in range(0, part.num_rows, size))

    n = sum(batch.num_rows for batch in record_batches())
    return _arrow_table(path, opened().schema, n, batches)


def _arrow_table(path: Path, schema: Any, n: int, batches: Callable[[list[str], int], Iterator[Any]]) -> FeatureTable:
    """A column of lists of the same length, and a column of ids."""
    from pyarrow import types

    def is_features(kind: Any) -> bool:
        is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
        return is_list and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))

    check_rows(n, str(path))
    if len(set(schema.names)) < len(schema.names):
        raise DataError(f"{path} has two columns of the same name; rename one")
    column = _choose([f.name for f in schema if is_features(f.type)], schema.names, path)
    normal = {normal_column(name): name for name in schema.names if name != column}
    id_column = next((normal[name] for name in _ID_NAMES if name in normal), None)
    ids: list[str] | None = None
    if id_column is not None:
        ids = [_text(value) for batch in batches([id_column], 2**16) for value in batch.column(0).to_pylist()]
    kind = schema.field(column).type
    width = kind.list_size if types.is_fixed_size_list(kind) else None
    if width is None:
        first = next((batch.column(0)[0] for batch in batches([column], 1) if batch.num_rows), None)
        width = 0 if first is None or not first.is_valid else len(first)
    if not n or not width:
        raise DataError(f"{path} has {n} rows of {width} numbers; features are rows x numbers, at least one of each")

    def blocks() -> Iterator[np.ndarray]:
        for batch in batches([column], _rows_at_once(width)):
            lists = batch.column(0)
            values = lists.flatten()  # without the elements of empty rows
            if lists.null_count or values.null_count:
                raise DataError(f"the column {column} of {path} has empty values; fill them in or delete the rows")
            if len(values) != len(lists) * width:
                raise DataError(f"the rows of {path} have different lengths; rows of one model have one length")
            yield values.to_numpy(zero_copy_only=False).reshape(len(lists), width)

    return FeatureTable(n, width, blocks, ids)


def _read_csv(path: Path) -> FeatureTable:
    """A header, an id column with a usual name, and numbers in all other columns. Without a header: only numbers."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        first_line = file.readline(_MAX_HEADER)
        if len(first_line) == _MAX_HEADER:
            raise DataError(f"the first line of {path} has over {_MAX_HEADER:,} characters; is it a table?")
    header = next(csv.reader([first_line], delimiter=separator), [])
    has_header = not all(map(_is_number, header))
    columns = [normal_column(name) for name in header] if has_header else []
    id_position = next((columns.index(name) for name in _ID_NAMES if name in columns), None)
    width = len(header) - (id_position is not None)

    def rows() -> Iterator[list[str]]:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            if has_header:
                next(reader)
            for row in reader:
                if row and len(row) != len(header):
                    found = f"{len(row)} values instead of {len(header)}"
                    raise DataError(f"line {reader.line_num} of {path} has {found}; correct it")
                if row:
                    yield row

    ids: list[str] | None = None
    if id_position is not None:
        ids = [row[id_position].strip() for row in rows()]
    n = len(ids) if ids is not None else sum(1 for _ in rows())
    if not n or not width:
        raise DataError(f"{path} has {n} rows of {width} numbers; features are rows x numbers, at least one of each")

    def blocks() -> Iterator[np.ndarray]:
        size = _rows_at_once(width)
        block: list[np.ndarray] = []
        for number, row in enumerate(rows(), 1):
            values = row if id_position is None else row[:id_position] + row[id_position + 1 :]
            block.append(_numbers(values, number, path))
            if len(block) == size:
                yield np.stack(block)
                block.clear()
        if block:
            yield np.stack(block)

    return FeatureTable(n, width, blocks, ids)


def _numbers(values: list[str], row: int, path: Path) -> np.ndarray:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        wrong = shorten(next(value for value in values if not _is_number(value)), 40)
        raise DataError(f"row {row} of {path} has {wrong!r} where a number is expected; correct it") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
        return True
    except ValueError:
        return False


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def check_rows(n: int, origin: str) -> None:
    """Reject more rows than have names in memory: a compressed file of a few bytes can have 10^9 equal rows."""
    if n * _NAME_BYTES > free_host_memory():
        raise DataError(
            f"{origin} has {n:,} rows, whose names alone need {n * _NAME_BYTES / 2**30:,.0f} GB of memory; give a part "
            "of them"
        )


def check_ids(ids: Iterable[str], n: int, origin: str) -> list[str]:
    """The ids, if there is one for each of ``n`` rows, and all differ."""
    found = list(ids)
    if len(found) != n:
        raise DataError(f"{origin} has {len(found)} ids for {n} rows; give one for each row")
    check_id_texts(found, origin, first=1)
    return check_distinct(found, origin)


def check_distinct(ids: list[str], origin: str) -> list[str]:
    """The ids, if all differ."""
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"{origin} has the id {shorten(twice)} twice; an id names one row")
    return ids


def check_id_texts(ids: Sequence[str], origin: str, first: int = 0) -> None:
    """Reject ids that are blank, very long or cannot be written to a file; ``first`` is the number of the first row."""
    together = "".join(ids)
    is_short = max(map(len, ids), default=0) <= _MAX_ID
    if is_short and all(map(str.strip, ids)) and "\0" not in together and is_unicode(together):
        return
    for number, name in enumerate(ids, first):
        if not name.strip():
            raise DataError(f"row {number} of {origin} has no id; fill it in or delete the row")
        if "\0" in name or len(name) > _MAX_ID or not is_unicode(name):
            raise DataError(f"the id {shorten(ascii(name))} of {origin} is not a short text; rename it")


_READERS: dict[str, Callable[[Path], FeatureTable]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
    ".safetensors": _read_safetensors,
    ".csv": _read_csv,
    ".tsv": _read_csv,
}
