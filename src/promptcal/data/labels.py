"""Labels from a CSV file (`path,label`) or a sequence, matched to images by name; missing or empty = unlabelled."""

import csv
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptcal.data.images import ImageSet
from promptcal.errors import LabelError


def read_labels(labels: Any, images: ImageSet) -> list[str | None]:
    """One class name (or None) per image, from a CSV path, a mapping name -> label, or a sequence in order."""
    if labels is None:
        return [None] * len(images)
    if isinstance(labels, str | os.PathLike):
        return _match(_read_csv(Path(labels)), images)
    if isinstance(labels, Mapping):
        return _match(((str(name), class_name(label)) for name, label in labels.items()), images)
    if getattr(labels, "ndim", 1) != 1 or not isinstance(labels, Iterable):
        raise LabelError("labels must be a CSV file, a mapping from paths, or a flat sequence with one per image")
    labels = list(labels)
    if len(labels) != len(images):
        raise LabelError(f"{len(labels)} labels do not fit {len(images)} images; give one per image, -1 = unlabelled")
    return [class_name(label) for label in labels]


def class_name(label: Any) -> str | None:
    """The class a label names, as text; None for -1, NaN, None and empty text."""
    label = label.item() if hasattr(label, "item") else label  # of a NumPy or torch scalar
    if label is None or label != label:
        return None
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = str(label).strip()
    return None if text in ("", "-1", "-1.0") else text


def class_numbers(names: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Class numbers (-1 = unlabelled) and the class names they stand for, in natural order."""
    classes = sorted({n for n in names if n is not None}, key=_natural)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([-1 if n is None else number[n] for n in names], dtype=np.int64), classes


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() and name.isascii() else (1, 0, name)


def _read_csv(path: Path) -> list[tuple[str, str | None]]:
    if not path.is_file():
        raise LabelError(f"the label file {path} does not exist; check the path")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True, strict=True)
            columns = [c.strip() for c in reader.fieldnames or [] if c is not None]
            if not {"path", "label"} <= set(columns):
                found = ", ".join(columns) or "nothing"
                raise LabelError(
                    f"{path} needs a header with the columns path,label and commas between; it has {found!r}"
                )
            reader.fieldnames = columns
            pairs = []
            for row in reader:
                name = (row["path"] or "").strip()
                if not name:
                    raise LabelError(f"line {reader.line_num} of {path} has no path; fill it in or delete the line")
                if any(row.get(None, [])):
                    raise LabelError(
                        f"line {reader.line_num} of {path} is longer than its header; quote values with commas"
                    )
                pairs.append((name, class_name(row["label"])))
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{path} is not a readable CSV file ({error}); save it as UTF-8 CSV") from error
    return pairs


def _match(pairs: Iterable[tuple[str, str | None]], images: ImageSet) -> list[str | None]:
    """Labels in the order of the images; a label for a file that is not among them is an error."""
    names = [_plain(name) for name in images.names]
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
        remedy = (
            f"write paths as in {images.names[0]}"
            if images.root is None
            else "write paths relative to the image folder"
        )
        raise LabelError(f"there is a label for {unknown[0]}{more}, but no such image; {remedy}")
    return [by_name.get(name) for name in names]


def _as_image_name(path: str, images: ImageSet) -> str:
    if images.root is not None and Path(path).is_absolute():
        for file, root in ((Path(path), images.root.absolute()), (Path(path).resolve(), images.root.resolve())):
            if file.is_relative_to(root):
                return _plain(str(file.relative_to(root)))
    return _plain(path)


def _plain(name: str) -> str:
    """One spelling of a path: without ./ and with accents composed, as some systems store them apart."""
    return unicodedata.normalize("NFC", Path(name).as_posix())
