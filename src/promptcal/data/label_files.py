"""Rows of a label file, read one by one with limits: an untrusted file must not fill the memory or take hours."""

import codecs
import csv
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from promptcal.data.image_files import HEIC_SUFFIXES, SUFFIXES
from promptcal.errors import LabelError, shorten
from promptcal.runtime.user_warnings import warn

Row = tuple[str, Any]  # a path, and a label as the file has it
Progress = Callable[[float], None]  # takes the share of the file that has been read
IsImage = Callable[[str], bool]  # whether a text names one of the images

MAX_ROWS, _MAX_ROWS_PER_IMAGE = 1_000_000, 10  # whichever is more
_MAX_CHARACTERS, _MAX_CHARACTERS_PER_IMAGE = 2**28, 2000  # of a CSV file, whichever is more
_MAX_LINE = 1_000_000  # characters
_MAX_HEADER = 100_000  # characters
_MAX_FIELD = 2**17  # characters; also the default limit of Python's CSV reader
_MAX_COLUMNS = 1000
_MAX_PARQUET_BYTES = 2**30  # uncompressed
MOST_PROBED = 20  # rows that show which of two columns names the images
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1024, 2**20
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}
# Names of the two columns, in any letter case, with _ or blanks between words; the first one that a table has is used.
PATH_COLUMNS = (
    *("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_name"),
    *("image_file", "img", "img_path", "image_id", "id", "name"),
)
_LABEL_COLUMNS = (
    *("label", "class", "class_name", "class_label", "label_name", "category", "category_name", "species", "target"),
    *("class_id", "label_id", "category_id", "y", "name"),
)


def read_rows(
    path: Path, n_images: int, on_progress: Progress = lambda share: None, is_image: IsImage | None = None
) -> Iterator[Row]:
    """The rows of a CSV, TSV or parquet file for so many images; a `LabelError` if it is not one or exceeds a limit.

    With ``is_image``, the two columns of a CSV file may have any names.
    """
    if not path.is_file():
        raise LabelError(f"the label file {path} does not exist; check the path")
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1" or path.suffix.lower() == ".parquet"
    if is_parquet:
        yield from _read_parquet(path, n_images, on_progress)
    else:
        yield from _read_csv(path, n_images, on_progress, is_image)


def find_columns(columns: Sequence[str]) -> tuple[int, int] | None:
    """The positions of the path and of the label column, or None if one of them is absent."""
    lower = [normal_column(column) for column in columns]
    path = next((lower.index(name) for name in PATH_COLUMNS if name in lower), None)
    label = next((lower.index(name) for name in _LABEL_COLUMNS if name in lower and lower.index(name) != path), None)
    if path is None or label is None:
        return None
    twice = next((column for column in (path, label) if lower.count(lower[column]) > 1), None)
    if twice is not None:
        raise LabelError(f"the labels have two columns called {columns[twice]}; rename or remove one of them")
    return path, label


def path_column_by_values(header: Sequence[str], rows: Sequence[Sequence[str]], is_image: IsImage) -> int | None:
    """Which of two columns names images in at least half of the first rows; None if not exactly one of them does.

    A column whose name is known keeps its meaning.
    """
    names = [normal_column(name) for name in header]
    is_path = [name in PATH_COLUMNS for name in names]
    is_label = [name in _LABEL_COLUMNS and name not in PATH_COLUMNS for name in names]

    def names_images(column: int) -> bool:
        values = [row[column].strip() for row in rows[:MOST_PROBED] if len(row) > column]
        return bool(values) and 2 * sum(map(is_image, values)) >= len(values)

    found = [c for c in (0, 1) if not is_label[c] and not is_path[1 - c] and names_images(c)]
    return found[0] if len(found) == 1 else None


def warn_of_columns(origin: str, columns: Sequence[str], path: int) -> None:
    """Say which of two columns is read as the path, because its values are images."""
    warn(
        f"{origin} has the columns {shorten(repr(columns[0]))} and {shorten(repr(columns[1]))}; "
        f"{shorten(repr(columns[path]))} is read as path, because it names images, and the other one as label",
        stacklevel=2,
    )


def normal_column(name: str) -> str:
    """The name of a column in lower case, with _ between its words."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def _max_rows(n_images: int) -> int:
    return max(MAX_ROWS, _MAX_ROWS_PER_IMAGE * n_images)


def _too_many_rows(path: Path, n_images: int) -> LabelError:
    return LabelError(f"{path} has over {_max_rows(n_images):,} rows for {n_images:,} images; give one row per image")


class _Lines:
    """The lines of a CSV file. ``number`` is that of the last line that was read."""

    def __init__(self, path: Path, file: TextIO, n_images: int, on_progress: Progress) -> None:
        self.path = path
        self.number = 0
        self._file = file
        self._n_images = n_images
        self._max_lines = _max_rows(n_images)
        self._characters_left = max(_MAX_CHARACTERS, _MAX_CHARACTERS_PER_IMAGE * n_images)
        self._bytes = max(1, path.stat().st_size)
        self._on_progress = on_progress

    def __iter__(self) -> Iterator[str]:
        while line := self.next(_MAX_LINE):
            yield line

    def next(self, longest: int) -> str:
        """The next line, empty at the end of the file."""
        line = self._file.readline(longest)
        self.number += bool(line)
        self._characters_left -= len(line)
        if len(line) >= longest:
            raise LabelError(f"line {self.number} of {self.path} has over {longest:,} characters; is it a table?")
        if self._characters_left < 0:
            raise LabelError(
                f"{self.path} is too large for {self._n_images:,} images; keep the path and the label only"
            )
        if self.number > self._max_lines:
            raise _too_many_rows(self.path, self._n_images)
        if self.number % _ROWS_AT_ONCE == 0:
            self._on_progress(self._file.buffer.tell() / self._bytes)
        return line

    def first(self) -> str:
        """The first line that is neither blank nor the ``sep=;`` of spreadsheet programs."""
        line = self.next(_MAX_HEADER)
        while line and (not line.strip() or re.fullmatch(r"sep=.\s*", line)):
            line = self.next(_MAX_HEADER)
        return line


def _read_csv(path: Path, n_images: int, on_progress: Progress, is_image: IsImage | None) -> Iterator[Row]:
    """The separator (comma, tab or semicolon) is the one with which the header has the two columns.

    Without a header, the first line must be an image file and its label. Two columns with other names are read if the
    values of one of them are images.
    """
    encoding = _encoding(path)
    try:
        with path.open(newline="", encoding=encoding) as file:
            lines = _Lines(path, file, n_images, on_progress)
            first = lines.first()
            for separator in _SEPARATORS:
                columns = _columns(first, separator)
                if len(columns) > _MAX_COLUMNS:
                    raise LabelError(f"{path} has over {_MAX_COLUMNS} columns; keep the path and the label only")
                if find_columns(columns) is not None:
                    yield from _table_rows(lines, columns, separator)
                    return
                if len(columns) == 2 and Path(columns[0]).suffix.lower() in SUFFIXES | HEIC_SUFFIXES:
                    yield columns[0], columns[1]
                    yield from _table_rows(lines, ["path", "label"], separator)
                    return
            named = None if is_image is None else _named_by_values(path, encoding, n_images, is_image)
            if named is not None:
                separator, columns, first_row = named
                yield from [] if first_row is None else [first_row]
                yield from _table_rows(lines, columns, separator)
                return
            found = shorten(", ".join(_columns(first, ",")), 200) or "nothing"
            raise LabelError(
                f"{path} needs a header with the columns path,label, separated by commas, tabs or semicolons; "
                f"it has {found!r}"
            )
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{path} is not a readable CSV file ({error}); save it as UTF-8 CSV") from error


def _named_by_values(
    path: Path, encoding: str, n_images: int, is_image: IsImage
) -> tuple[str, list[str], Row | None] | None:
    """The separator of two columns one of which names images, which column is which, and the first line if it is a row.

    None if there are no such columns.
    """
    for separator in _SEPARATORS:
        header, rows = _first_rows(path, encoding, n_images, separator)
        number = path_column_by_values(header, rows, is_image) if len(header) == 2 else None
        if number is None:
            continue
        columns = ["label", "path"] if number else ["path", "label"]
        if is_image(header[number]):
            return separator, columns, (header[number], header[1 - number])
        warn_of_columns(str(path), header, number)
        return separator, columns, None
    return None


def _first_rows(path: Path, encoding: str, n_images: int, separator: str) -> tuple[list[str], list[list[str]]]:
    """The header of a CSV file and a few rows, read apart."""
    with path.open(newline="", encoding=encoding) as file:
        lines = _Lines(path, file, n_images, lambda share: None)
        header = _columns(lines.first(), separator)
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        return header, list(itertools.islice(filter(None, rows), MOST_PROBED))


def _encoding(path: Path) -> str:
    """UTF-8, UTF-16 with its mark, as spreadsheet programs save "Unicode text", or Windows-1252, as they save "CSV"."""
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block := file.read(_BYTES_AT_ONCE):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            found = error.object[max(0, error.start - 20) : error.start + 20].decode("cp1252", "replace")
            warn(
                f"{path} is not UTF-8 and is read as Windows-1252, with text such as {found.strip()!r}; if that looks "
                "wrong, save the file as UTF-8 CSV",
                stacklevel=2,
            )
            return "cp1252"
    return "utf-8-sig"


def _columns(header: str, separator: str) -> list[str]:
    rows = csv.reader([header], delimiter=separator, skipinitialspace=True)
    return [column.strip() for column in next(rows, [])]


def _table_rows(lines: _Lines, header: Sequence[str], separator: str) -> Iterator[Row]:
    path_column, label_column = find_columns(header) or (0, 1)
    missing = [""] * len(header)
    for row in csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True):
        if not row:
            continue
        if any(row[len(header) :]):
            raise LabelError(
                f"line {lines.number} of {lines.path} is longer than its header; "
                f"quote values with {_SEPARATORS[separator]}"
            )
        values = row if len(row) >= len(header) else [*row, *missing]
        name = values[path_column].strip()
        if not name:
            raise LabelError(f"line {lines.number} of {lines.path} has no path; fill it in or delete the line")
        yield name, values[label_column]


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    try:
        from pyarrow import ArrowException
    except ImportError as error:
        raise LabelError(
            f"reading {path} needs pyarrow; pip install 'promptcal[parquet]', or save the labels as CSV"
        ) from error
    try:
        yield
    except (ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:  # the last: dates
        raise LabelError(f"{path} is not a readable parquet file ({shorten(error, 200)}); write it again") from error


def _read_parquet(path: Path, n_images: int, on_progress: Progress) -> Iterator[Row]:
    """Text is read as a dictionary: repeated values, which a small file can have many of, are not expanded."""
    with _arrow_errors(path):
        from pyarrow import types
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            schema = file.schema_arrow
            n_rows = _check_parquet(path, file, n_images)
        chosen = [schema.field(position) for position in find_columns(schema.names) or ()]
        texts = [f.name for f in chosen if types.is_string(f.type) or types.is_large_string(f.type)]
        done = 0
        with ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[f.name for f in chosen]):
                names, labels = (_parquet_values(path, batch.column(f.name)) for f in chosen)
                for name, label in zip(names, labels, strict=True):
                    done += 1
                    text = "" if name is None else str(name).strip()
                    if not text:
                        raise LabelError(f"row {done} of {path} has no path; fill it in or delete the row")
                    yield text, label
                on_progress(done / n_rows)


def _check_parquet(path: Path, file: Any, n_images: int) -> int:
    """Check the limits by what the file says about itself; returns the number of rows."""
    names, metadata = file.schema_arrow.names, file.metadata
    found = find_columns(names[:_MAX_COLUMNS])
    if found is None or len(set(names)) < len(names):
        shown = shorten(", ".join(names[:_MAX_COLUMNS]), 200) or "none"
        raise LabelError(f"{path} needs the columns path and label; it has {shown!r}")
    if metadata.num_rows > _max_rows(n_images):
        raise _too_many_rows(path, n_images)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) <= _MAX_PARQUET_BYTES:
        return max(1, metadata.num_rows)
    wanted = {names[position] for position in found}
    for i in range(len(groups)):  # if a column is described wrongly, this raises, but `group.column` ends the process
        next(file.iter_batches(1, row_groups=[i], columns=sorted(wanted)), None)
    numbers = [j for j in range(metadata.num_columns) if metadata.schema.column(j).path in wanted]
    size = sum(group.column(j).total_uncompressed_size for group in groups for j in numbers)
    if size > _MAX_PARQUET_BYTES:
        raise LabelError(f"{path} unpacks to {size / 2**30:.0f} GB; keep the path and the label only")
    return max(1, metadata.num_rows)


def _parquet_values(path: Path, column: Any) -> list[Any]:
    import pyarrow.compute as pc
    from pyarrow import types

    values = column.dictionary if types.is_dictionary(column.type) else column
    if types.is_nested(values.type):
        raise LabelError(f"{path} has a column of type {shorten(values.type)}; a path and a label are text or numbers")
    is_text = types.is_string(values.type) or types.is_large_string(values.type) or types.is_binary(values.type)
    if is_text and (pc.max(pc.binary_length(values)).as_py() or 0) > _MAX_FIELD:
        raise LabelError(f"{path} has a value of over {_MAX_FIELD:,} bytes; a path and a label are short texts")
    return column.to_pylist()
