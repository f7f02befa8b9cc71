"""Images in parquet files: a column of encoded images (bytes, or a struct with bytes), or of paths or URLs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from promptcal.data import ImageSet
from promptcal.data.feature_files import check_id_texts
from promptcal.data.label_files import normal_column
from promptcal.data.sources import ImageSource
from promptcal.errors import DataError, MissingPackageError, shorten
from promptcal.shards import locations
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_sources import BytesSource, ImageChunk, LocationSource, Place

_IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content", "data", "picture")
_PLACE_COLUMNS = (
    "path",
    "file",
    "file_name",
    "filename",
    "file_path",
    "filepath",
    "image_path",
    "url",
    "image_url",
    "uri",
)
ID_COLUMNS = ("id", "key", "__key__", "_key_", "image_id", "name")


class ImageColumns(NamedTuple):
    """The names of the columns; ``image`` has encoded images, ``place`` paths or URLs, one of them may be absent."""

    id: str | None
    image: str | None
    place: str | None
    is_struct: bool

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in (self.id, self.image, self.place) if name is not None))


@contextmanager
def opened_parquet(location: str) -> Iterator[Any]:
    """A parquet file; a `DataError` if it cannot be read."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingPackageError("shards need pyarrow; pip install 'promptcal[parquet]'") from error
    with locations.opened(location) as file:
        try:
            with ParquetFile(file) as opened:
                names = opened.schema_arrow.names
                if len(set(names)) < len(names):
                    raise DataError(f"{location} has two columns of the same name; rename one")
                yield opened
        except (ArrowException, OSError, ValueError, OverflowError) as error:  # the last: dates that Python lacks
            if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
                raise  # of the system or the network; those of Arrow have no number and no kind
            raise DataError(
                f"{location} is no readable parquet file ({shorten(' '.join(str(error).split()), 200)}); write it "
                "again, then run the same command again"
            ) from error


def image_columns(schema: Any, location: str) -> ImageColumns:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        return types.is_string(kind) or types.is_large_string(kind)

    def is_bytes(kind: Any) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind)

    def has_bytes(kind: Any) -> bool:
        if not types.is_struct(kind):
            return False
        return any(kind.field(i).name == "bytes" and is_bytes(kind.field(i).type) for i in range(kind.num_fields))

    by_name = {normal_column(name): schema.field(name) for name in reversed(schema.names)}
    image = next((f for n in _IMAGE_COLUMNS if (f := by_name.get(n)) and (is_bytes(f.type) or has_bytes(f.type))), None)
    place = next((f for n in (*_PLACE_COLUMNS, *_IMAGE_COLUMNS) if (f := by_name.get(n)) and is_text(f.type)), None)
    if image is None and place is None:
        raise DataError(
            f"{location} has no column of images: {shorten(', '.join(schema.names), 200) or 'no columns'}; it needs "
            "image (bytes), or path or url (text), and id"
        )
    named = next((by_name[n] for n in ID_COLUMNS if n in by_name), place)
    is_struct = image is not None and types.is_struct(image.type)
    id_name, image_name, place_name = (None if f is None else f.name for f in (named, image, place))
    return ImageColumns(id_name, image_name, place_name, is_struct)


def parquet_chunks(shard: InputShard, size: int) -> Iterator[ImageChunk]:
    location, row = shard.location, 0
    with opened_parquet(location) as file:
        columns = image_columns(file.schema_arrow, location)
        for batch in file.iter_batches(size, columns=columns.names()):
            ids = _ids(batch, columns, shard, row)
            values = {name: batch.column(name).to_pylist() for name in columns.names() if name != columns.id}
            if columns.id is not None:
                values[columns.id] = ids
            if columns.image is not None:
                encoded = values[columns.image]
                contents = [value and value["bytes"] for value in encoded] if columns.is_struct else encoded
                source: ImageSource = BytesSource(contents)
                paths = [f"{location}#{row + i}" for i in range(len(ids))]
            else:
                paths = [locations.beside(location, place or "") for place in values[columns.place or ""]]
                source = LocationSource(paths)
            yield ImageChunk(ids, paths, ImageSet(ids, source))
            row += len(ids)


def parquet_places(shard: InputShard) -> Iterator[tuple[list[str], list[Place]]]:
    location, row = shard.location, 0
    with opened_parquet(location) as file:
        columns = image_columns(file.schema_arrow, location)
        wanted = [columns.id] if columns.image is not None else [columns.id, columns.place]
        names = list(dict.fromkeys(name for name in wanted if name is not None))
        for batch in file.iter_batches(2**14, columns=names):
            ids = _ids(batch, columns, shard, row)
            if columns.image is not None:
                places = [Place(location, row=row + i) for i in range(len(ids))]
            else:
                named = ids if columns.place == columns.id else batch.column(columns.place).to_pylist()
                places = [Place(locations.beside(location, place or "")) for place in named]
            yield ids, places
            row += len(ids)


def read_row(location: str, row: int) -> bytes:
    """The encoded image of a row; rows are read in groups, of which the last ones stay in memory."""
    first = 0
    for number, n in enumerate(_group_sizes(location)):
        if row < first + n:
            content = _row_group(location, number)[row - first]
            if content is None:
                raise ValueError("there is no image")
            return content
        first += n
    raise DataError(f"{location} has no row {row} any more; it was changed, so run the command again")


@lru_cache(maxsize=1024)
def _group_sizes(location: str) -> list[int]:
    with opened_parquet(location) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


@lru_cache(maxsize=2)
def _row_group(location: str, number: int) -> list[bytes | None]:
    with opened_parquet(location) as file:
        columns = image_columns(file.schema_arrow, location)
        values = file.read_row_group(number, columns=[columns.image]).column(0).to_pylist()
    return [value and value["bytes"] for value in values] if columns.is_struct else values


def _ids(batch: Any, columns: ImageColumns, shard: InputShard, row: int) -> list[str]:
    """The ids of a batch; without a column of ids, the name of the shard and the number of the row."""
    if columns.id is None:
        return [f"{shard.name}/{row + i:08d}" for i in range(len(batch))]
    return id_texts(batch.column(columns.id), columns.id, shard.location, row)


def id_texts(column: Any, name: str, location: str, first: int) -> list[str]:
    """A column of ids as texts; ``first`` is the number of its first row."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_nested(kind):
        raise DataError(f"the column {name} of {location} holds values of type {kind}; an id is a text or a number")
    values = column.to_pylist()
    if types.is_binary(kind) or types.is_large_binary(kind):
        values = [value and value.decode("utf-8") for value in values]
    ids = ["" if value is None else str(value) for value in values]
    check_id_texts(ids, location, first)
    return ids
