"""Labels from a table with a path and a label column, or a sequence, matched to images by name; empty = unlabelled."""

import codecs
import csv
import difflib
import itertools
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from promptcal.data.decoding import HEIC_REMEDY, reads_heic
from promptcal.data.image_files import HEIC_SUFFIXES, SUFFIXES
from promptcal.data.images import ImageSet
from promptcal.errors import LabelError, PromptCALWarning, shorten
from promptcal.runtime.arguments import check_path

_NORMAL = re.compile(r"[\w-][\w .-]*(?:/[\w-][\w .-]*)*", re.ASCII)
_MAX_HEADER = 100_000  # characters
_MAX_COMPARED = 10_000  # names, for a suggestion
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}
# Names of the two columns, in any letter case, with _ or blanks between words; the first one that a table has is used.
_PATH_COLUMNS = (
    *("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_name"),
    *("image_file", "img", "img_path", "image_id", "id", "name"),
)
_LABEL_COLUMNS = (
    *("label", "class", "class_name", "class_label", "label_name", "category", "category_name", "species", "target"),
    *("class_id", "label_id", "category_id", "y", "name"),
)


@dataclass(frozen=True)
class Labels:
    """One class name (or None) per image, and whether a file or mapping lists the image with an empty label."""

    names: list[str | None]
    removed: list[bool]


def read_labels(labels: Any, images: ImageSet) -> list[str | None]:
    """One class name (or None) per image; see `parse_labels`."""
    return parse_labels(labels, images).names


def parse_labels(labels: Any, images: ImageSet) -> Labels:
    """Labels from a CSV, TSV or parquet file, a mapping name -> label, or a sequence with one label per image.

    A pandas Series with an index of text is a mapping, and a data frame is a table like a file. Without ``labels``, the
    labels that come with the images are used, if there are any.
    """
    if labels is None and images.source_labels is not None:
        warnings.warn(f"labels are taken from {images.source_labels.origin}", PromptCALWarning, stacklevel=3)
        labels = images.source_labels.values
    if labels is None:
        labels = [None] * len(images)
    if isinstance(labels, str | os.PathLike):
        return _match(_read_table(check_path("labels", labels)), images)
    if hasattr(labels, "columns"):
        return _match(_frame_pairs(labels), images)
    if isinstance(labels, Mapping) or _has_text_index(labels):
        return _match(((str(name), class_name(label)) for name, label in labels.items()), images)
    if getattr(labels, "ndim", 1) != 1 or not isinstance(labels, Iterable):
        raise LabelError(
            "labels must be a CSV or parquet file, a mapping from paths, or a flat sequence with one label per image"
        )
    labels = list(labels)
    if len(labels) != len(images):
        raise LabelError(f"{len(labels)} labels do not fit {len(images)} images; give one per image, -1 = unlabelled")
    # A sequence cannot omit an image, so an empty label in it does not remove an earlier one.
    return Labels([class_name(label) for label in labels], [False] * len(labels))


def class_name(label: Any) -> str | None:
    """The class name of a label; None for -1, NaN, None and empty text."""
    try:
        label = label.item() if hasattr(label, "item") else label  # a NumPy or torch scalar
        is_scalar = isinstance(label, str) or not isinstance(label, Iterable)
    except (ValueError, RuntimeError):  # of several values
        is_scalar = False
    if not is_scalar:
        raise LabelError(f"a label must be a text or a number, not {type(label).__name__} {str(label)[:60]!r}")
    if label is None or _is_missing(label):
        return None
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = str(label).strip()
    if "\0" in text or not (text.isascii() or _is_unicode(text)):
        raise LabelError(f"the label {shorten(ascii(text))} has a NUL character or is not valid Unicode; rename it")
    return None if text in ("", "-1", "-1.0") else text


def _is_unicode(text: str) -> bool:
    """Whether the text can be written to a file: half of a surrogate pair cannot."""
    return text.encode("utf-8", "ignore").decode() == text


def _is_missing(label: Any) -> bool:
    try:
        return bool(label != label)
    except (TypeError, ValueError):  # the missing value of pandas is neither equal to itself nor different
        return True


def _has_text_index(labels: Any) -> bool:
    """Whether this is a pandas Series whose index has names, not numbers."""
    index = getattr(labels, "index", None)
    if not hasattr(labels, "items") or not isinstance(index, Iterable) or not len(labels):
        return False
    return all(isinstance(name, str) for name in index)


def _frame_pairs(frame: Any) -> list[tuple[str, str | None]]:
    """Paths and labels of a data frame."""
    columns = list(frame.columns)
    found = _two_columns([str(column) for column in columns])
    if found is None or len(set(columns)) < len(columns):
        shown = ", ".join(map(str, columns))[:200]
        raise LabelError(f"a data frame of labels needs one column path and one column label; it has {shown or 'none'}")
    names, labels = (list(frame[columns[position]]) for position in found)
    return [(str(name), class_name(label)) for name, label in zip(names, labels, strict=True)]


def class_numbers(names: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Class numbers (-1 = unlabelled) and the class names by number, in natural order."""
    classes = sorted({n for n in names if n is not None}, key=_natural)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([-1 if n is None else number[n] for n in names], dtype=np.int64), classes


def differ_in_letter_case(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that differ only in letter case, if there are any."""
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(name.casefold(), name)
        if other != name:
            return other, name
    return None


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() and name.isascii() else (1, 0, name)


def _read_table(path: Path) -> list[tuple[str, str | None]]:
    if not path.is_file():
        raise LabelError(f"the label file {path} does not exist; check the path")
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1" or path.suffix.lower() == ".parquet"
    return _read_parquet(path) if is_parquet else _read_csv(path)


def _read_csv(path: Path) -> list[tuple[str, str | None]]:
    """The separator (comma, tab or semicolon) is the one with which the header has the two columns.

    Without a header, the first line must be an image file and its label.
    """
    try:
        with path.open(newline="", encoding=_encoding(path)) as file:
            first, n_skipped = _first_line(file)
            for separator in _SEPARATORS:
                columns = _columns(first, separator)
                if _two_columns(columns) is not None:
                    return _rows(path, itertools.chain([first], file), separator, n_skipped, has_header=True)
                if len(columns) == 2 and Path(columns[0]).suffix.lower() in SUFFIXES | HEIC_SUFFIXES:
                    return _rows(path, itertools.chain([first], file), separator, n_skipped, has_header=False)
            found = ", ".join(_columns(first, ",")) or "nothing"
            raise LabelError(
                f"{path} needs a header with the columns path,label, separated by commas, tabs or semicolons; "
                f"it has {found!r}"
            )
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{path} is not a readable CSV file ({error}); save it as UTF-8 CSV") from error


def _encoding(path: Path) -> str:
    """UTF-8, or UTF-16 with its mark, as spreadsheet programs save "Unicode text"."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _first_line(file: TextIO) -> tuple[str, int]:
    """The first line that is neither blank nor the ``sep=;`` of spreadsheet programs, and how many lines precede it."""
    line, n_skipped = file.readline(_MAX_HEADER), 0
    while line and (not line.strip() or re.fullmatch(r"sep=.\s*", line)):
        line, n_skipped = file.readline(_MAX_HEADER), n_skipped + 1
    return line, n_skipped


def _columns(header: str, separator: str) -> list[str]:
    rows = csv.reader([header], delimiter=separator, skipinitialspace=True)
    return [column.strip() for column in next(rows, [])]


def _two_columns(columns: Sequence[str]) -> tuple[int, int] | None:
    """The positions of the path and of the label column, or None if one of them is absent."""
    lower = [re.sub(r"[\s_-]+", "_", column.strip().lower()) for column in columns]
    path = next((lower.index(name) for name in _PATH_COLUMNS if name in lower), None)
    label = next((lower.index(name) for name in _LABEL_COLUMNS if name in lower and lower.index(name) != path), None)
    return None if path is None or label is None else (path, label)


def _rows(
    path: Path, lines: Iterable[str], separator: str, n_skipped: int, *, has_header: bool
) -> list[tuple[str, str | None]]:
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    header = [column.strip() for column in next(reader)] if has_header else ["path", "label"]
    path_column, label_column = _two_columns(header) or (0, 1)
    pairs = []
    for row in reader:
        if not row:
            continue
        if any(row[len(header) :]):
            raise LabelError(
                f"line {n_skipped + reader.line_num} of {path} is longer than its header; "
                f"quote values with {_SEPARATORS[separator]}"
            )
        values = [*row, *[""] * len(header)]
        name = values[path_column].strip()
        if not name:
            line = n_skipped + reader.line_num
            raise LabelError(f"line {line} of {path} has no path; fill it in or delete the line")
        pairs.append((name, class_name(values[label_column])))
    return pairs


def _read_parquet(path: Path) -> list[tuple[str, str | None]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise LabelError(
            f"reading {path} needs pyarrow; pip install 'promptcal[parquet]', or save the labels as CSV"
        ) from error
    try:
        with ParquetFile(path) as file:
            columns = file.schema_arrow.names
            found = _two_columns(columns)
            if found is None:
                raise LabelError(f"{path} needs the columns path and label; it has {', '.join(columns) or 'none'!r}")
            path_column, label_column = (columns[position] for position in found)
            table = file.read(columns=[path_column, label_column]).to_pydict()
    except (ArrowException, OSError) as error:
        raise LabelError(f"{path} is not a readable parquet file ({error}); write it again") from error
    names = ["" if name is None else str(name).strip() for name in table[path_column]]
    if "" in names:
        raise LabelError(f"row {names.index('') + 1} of {path} has no path; fill it in or delete the row")
    return list(zip(names, map(class_name, table[label_column]), strict=True))


def _match(pairs: Iterable[tuple[str, str | None]], images: ImageSet) -> Labels:
    """Labels in the order of the images; a label for an unknown image is an error."""
    names = [_normalized(name) for name in images.names]
    known = set(names)
    similar: SimilarNames | None = None
    by_name: dict[str, str | None] = {}
    matched, unknown = [], []
    for path, label in pairs:
        name = _as_image_name(path, images)
        if name not in known:
            similar = similar or SimilarNames(names)
            candidates = similar.of(name)
            if len(candidates) != 1 or not _ends_like(name, candidates[0]):
                unknown.append((path, candidates))
                continue
            name = candidates[0]
            matched.append((path, name))
        if by_name.setdefault(name, label) != label:
            raise LabelError(f"{path} has two labels, {by_name[name]!r} and {label!r}; keep one of them")
    if unknown:
        raise LabelError(_unknown_message(unknown, names, images))
    if matched:
        path, name = matched[0]
        labels = "1 label has another path than its image"
        if len(matched) > 1:
            labels = f"{len(matched)} labels have other paths than their images"
        warnings.warn(
            f"{labels}; matched by the end of the path, such as {path} to {name}",
            PromptCALWarning,
            stacklevel=4,
        )
    return Labels([by_name.get(name) for name in names], [by_name.get(name, "") is None for name in names])


class SimilarNames:
    """Finds the images that a path may mean: in other letter case, with backslashes, with more or fewer folders, or
    without the suffix.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.by_file_name: dict[str, list[str]] = {}
        self.by_stem: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            file_name = name.rpartition("/")[2].casefold()
            self.by_file_name.setdefault(file_name, []).append(name)
            self.by_stem.setdefault(file_name.rpartition(".")[0], []).append(name)

    def of(self, path: str) -> list[str]:
        """The images with the same file name that share most of the last folders with the path."""
        file_name = _parts(path)[-1]
        candidates = self.by_file_name.get(file_name) or self.by_stem.get(file_name, [])
        shared = [_shared_folders(path, name) for name in candidates]
        return [name for name, n in zip(candidates, shared, strict=True) if n == max(shared)]


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").casefold().split("/") if part not in ("", ".")] or [""]


def _shared_folders(first: str, second: str) -> int:
    """How many of the last folders are the same."""
    pairs = zip(reversed(_parts(first)[:-1]), reversed(_parts(second)[:-1]), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _ends_like(path: str, name: str) -> bool:
    """Whether one of the two only has more folders in front. Cameras use the same file names in other folders."""
    return _shared_folders(path, name) == min(len(_parts(path)), len(_parts(name))) - 1


def _unknown_message(unknown: Sequence[tuple[str, list[str]]], names: Sequence[str], images: ImageSet) -> str:
    path, candidates = unknown[0]
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    if Path(path).suffix.lower() in HEIC_SUFFIXES and not reads_heic():
        remedy = HEIC_REMEDY
    elif len(candidates) == 1:
        remedy = f"did you mean {candidates[0]}?"
    elif candidates:
        remedy = f"it may be {candidates[0]} or {candidates[1]}: write the folder too"
    elif close := difflib.get_close_matches(path, itertools.islice(names, _MAX_COMPARED), n=1, cutoff=0.8):
        remedy = f"did you mean {close[0]}?"
    else:
        remedy = f"write paths {f'as in {images.names[0]}' if images.root is None else 'relative to the image folder'}"
    return f"there is a label for {path}{more}, but no such image; {remedy}"


def _as_image_name(path: str, images: ImageSet) -> str:
    if images.root is not None and os.path.isabs(path):
        for file, root in ((Path(path), images.root.absolute()), (Path(path).resolve(), images.root.resolve())):
            if file.is_relative_to(root):
                return _normalized(str(file.relative_to(root)))
    return _normalized(path)


def _normalized(name: str) -> str:
    """A path without ./ and with composed accents (some systems store them decomposed)."""
    if _NORMAL.fullmatch(name):  # fast path: nearly all names, and there may be millions
        return name
    return unicodedata.normalize("NFC", Path(name).as_posix())
