"""Labels from a table with the columns path,label or a sequence, matched to images by name; empty = unlabelled."""

import csv
import itertools
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptcal.data.images import ImageSet
from promptcal.errors import LabelError, PromptCALWarning

_NORMAL = re.compile(r"[\w-][\w .-]*(?:/[\w-][\w .-]*)*", re.ASCII)
_MAX_HEADER = 100_000  # characters
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}


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

    Without ``labels``, the labels that come with the images are used, if there are any.
    """
    if labels is None and images.source_labels is not None:
        warnings.warn(f"labels are taken from {images.source_labels.origin}", PromptCALWarning, stacklevel=3)
        labels = images.source_labels.values
    if labels is None:
        labels = [None] * len(images)
    if isinstance(labels, str | os.PathLike):
        return _match(_read_table(Path(labels)), images)
    if isinstance(labels, Mapping):
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
    label = label.item() if hasattr(label, "item") else label  # a NumPy or torch scalar
    if label is None or label != label:
        return None
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = str(label).strip()
    return None if text in ("", "-1", "-1.0") else text


def class_numbers(names: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Class numbers (-1 = unlabelled) and the class names by number, in natural order."""
    classes = sorted({n for n in names if n is not None}, key=_natural)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([-1 if n is None else number[n] for n in names], dtype=np.int64), classes


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() and name.isascii() else (1, 0, name)


def _read_table(path: Path) -> list[tuple[str, str | None]]:
    if not path.is_file():
        raise LabelError(f"the label file {path} does not exist; check the path")
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1" or path.suffix.lower() == ".parquet"
    return _read_parquet(path) if is_parquet else _read_csv(path)


def _read_csv(path: Path) -> list[tuple[str, str | None]]:
    """The separator (comma, tab or semicolon) is the one with which the header has the two columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline(_MAX_HEADER)
            separator = next((s for s in _SEPARATORS if {"path", "label"} <= set(_columns(header, s))), None)
            if separator is None:
                found = ", ".join(_columns(header, ",")) or "nothing"
                raise LabelError(
                    f"{path} needs a header with the columns path,label, separated by commas, tabs or semicolons; "
                    f"it has {found!r}"
                )
            return _rows(path, itertools.chain([header], file), separator)
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{path} is not a readable CSV file ({error}); save it as UTF-8 CSV") from error


def _columns(header: str, separator: str) -> list[str]:
    rows = csv.reader([header], delimiter=separator, skipinitialspace=True)
    return [column.strip() for column in next(rows, [])]


def _rows(path: Path, lines: Iterable[str], separator: str) -> list[tuple[str, str | None]]:
    reader = csv.DictReader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    reader.fieldnames = [column.strip() for column in reader.fieldnames or []]
    pairs = []
    for row in reader:
        name = (row["path"] or "").strip()
        if not name:
            raise LabelError(f"line {reader.line_num} of {path} has no path; fill it in or delete the line")
        if any(row.get(None, [])):
            raise LabelError(
                f"line {reader.line_num} of {path} is longer than its header; "
                f"quote values with {_SEPARATORS[separator]}"
            )
        pairs.append((name, class_name(row["label"])))
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
            if not {"path", "label"} <= set(columns):
                raise LabelError(f"{path} needs the columns path and label; it has {', '.join(columns) or 'none'!r}")
            table = file.read(columns=["path", "label"]).to_pydict()
    except (ArrowException, OSError) as error:
        raise LabelError(f"{path} is not a readable parquet file ({error}); write it again") from error
    names = ["" if name is None else str(name).strip() for name in table["path"]]
    if "" in names:
        raise LabelError(f"row {names.index('') + 1} of {path} has no path; fill it in or delete the row")
    return list(zip(names, map(class_name, table["label"]), strict=True))


def _match(pairs: Iterable[tuple[str, str | None]], images: ImageSet) -> Labels:
    """Labels in the order of the images; a label for an unknown image is an error."""
    names = [_normalized(name) for name in images.names]
    known = set(names)
    by_name: dict[str, str | None] = {}
    unknown = []
    for path, label in pairs:
        name = _as_image_name(path, images)
        if name not in known:
            unknown.append(path)
        elif by_name.setdefault(name, label) != label:
            raise LabelError(f"{path} has two labels, {by_name[name]!r} and {label!r}; keep one of them")
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        example = f"as in {images.names[0]}" if images.root is None else "relative to the image folder"
        raise LabelError(f"there is a label for {unknown[0]}{more}, but no such image; write paths {example}")
    return Labels([by_name.get(name) for name in names], [by_name.get(name, "") is None for name in names])


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
