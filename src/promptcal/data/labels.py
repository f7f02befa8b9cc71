"""Labels from a CSV file (`path,label`) or a sequence, matched to images by name; missing or empty = unlabelled."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptcal.data.images import ImageSet
from promptcal.errors import LabelError


def read_labels(labels: Any, images: ImageSet) -> list[str | None]:
    """One class name (or None) per image, from a CSV path, a mapping name -> label, or a sequence in order."""
    if labels is None:
        return [None] * len(images)
    if isinstance(labels, str | Path):
        labels = _read_csv(Path(labels))
    if isinstance(labels, dict):
        return _match(labels, images)
    if len(labels) != len(images):
        raise LabelError(f"{len(labels)} labels do not fit {len(images)} images; give one per image, -1 = unlabelled")
    return [class_name(label) for label in labels]


def class_name(label: Any) -> str | None:
    """The class a label names, as text; None for -1, NaN, None and empty text."""
    if label is None or (isinstance(label, float | np.floating) and (np.isnan(label) or label == -1)):
        return None
    if isinstance(label, float | np.floating) and float(label).is_integer():
        label = int(label)
    text = str(label.item() if hasattr(label, "item") else label).strip()
    return None if text in ("", "-1") else text


def class_numbers(names: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Class numbers (-1 = unlabelled) and the class names they stand for, in natural order."""
    classes = sorted({n for n in names if n is not None}, key=_natural)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([-1 if n is None else number[n] for n in names], dtype=np.int64), classes


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() and name.isascii() else (1, 0, name)


def _read_csv(path: Path) -> dict[str, str | None]:
    if not path.is_file():
        raise LabelError(f"the label file {path} does not exist; check the path")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [c.strip() for c in reader.fieldnames or [] if c is not None]
            if not {"path", "label"} <= set(columns):
                found = ", ".join(columns) or "nothing"
                raise LabelError(f"{path} needs a header with the columns path,label; it has {found}")
            reader.fieldnames = columns
            found_labels: dict[str, str | None] = {}
            for row in reader:
                name, label = (row["path"] or "").strip(), class_name(row["label"])
                if not name:
                    raise LabelError(f"line {reader.line_num} of {path} has no path; fill it in or delete the line")
                if name in found_labels and found_labels[name] != label:
                    raise LabelError(
                        f"{path} gives {name} two labels, {found_labels[name]!r} and {label!r}; keep one of the lines"
                    )
                found_labels[name] = label
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{path} is not a readable CSV file ({error}); save it as UTF-8 CSV") from error
    return found_labels


def _match(labels: dict[Any, Any], images: ImageSet) -> list[str | None]:
    """Labels in the order of the images; a label for a file that is not among them is an error."""
    position = {name: i for i, name in enumerate(images.names)}
    by_image: list[str | None] = [None] * len(images)
    unknown = []
    for raw, label in labels.items():
        name = _as_image_name(str(raw), images)
        if name in position:
            by_image[position[name]] = class_name(label)
        else:
            unknown.append(str(raw))
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise LabelError(
            f"there is a label for {unknown[0]}{more}, but no such image; write paths relative to the image folder"
        )
    return by_image


def _as_image_name(name: str, images: ImageSet) -> str:
    if images.root is not None and Path(name).is_absolute():
        try:
            return Path(name).resolve().relative_to(images.root.resolve()).as_posix()
        except ValueError:
            return name
    return Path(name).as_posix() if images.root is not None else name
