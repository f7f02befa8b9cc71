"""Labels from a table with a path and a label column, or a sequence, matched to images by name; empty = unlabelled."""

import difflib
import itertools
import os
import re
import unicodedata
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from promptcal.data.decoding import HEIC_REMEDY, reads_heic
from promptcal.data.image_files import HEIC_SUFFIXES
from promptcal.data.images import ImageSet
from promptcal.data.label_files import (
    MOST_PROBED,
    IsImage,
    find_columns,
    path_column_by_values,
    read_rows,
    warn_of_columns,
)
from promptcal.data.sources import FileSource
from promptcal.errors import LabelError, shorten
from promptcal.runtime.arguments import as_list, check_path
from promptcal.runtime.progress import show_progress
from promptcal.runtime.user_warnings import warn

_NORMAL = re.compile(r"[\w-][\w .-]*(?:/[\w-][\w .-]*)*", re.ASCII)
_MAX_COMPARED, _MAX_COMPARED_PATH = 10_000, 200  # names, and characters of the path, for a suggestion
_MAX_UNKNOWN = 1000  # labels of missing images; a file with more of them is not read to its end
_MAX_PATH = 4096  # characters
_MOST_REMEMBERED = 4096  # labels of a file
UNCOUNTED = 10_000_000  # images, for the limits of labels whose images are not counted
_SHOW_PROGRESS_FROM = 2**24  # bytes, which take about two seconds


@dataclass(frozen=True)
class Labels:
    """One class name (or None) per image, and whether a file or mapping lists the image with an empty label."""

    names: list[str | None]
    removed: list[bool]


def read_labels(labels: Any, images: ImageSet, console: Console | None = None) -> list[str | None]:
    """One class name (or None) per image; see `parse_labels`."""
    return parse_labels(labels, images, console).names


def parse_labels(labels: Any, images: ImageSet, console: Console | None = None) -> Labels:
    """Labels from a CSV, TSV or parquet file, a mapping name -> label, or a sequence with one label per image.

    A pandas Series with an index of text is a mapping, and a data frame is a table like a file. Without ``labels``, the
    labels that come with the images are used, if there are any.
    """
    if labels is None and images.source_labels is not None:
        warn(f"labels are taken from {images.source_labels.origin}", stacklevel=3)
        labels = images.source_labels.values
    if labels is None:
        labels = [None] * len(images)
    if isinstance(labels, str | os.PathLike):
        path = check_path("labels", labels)
        n_images = len(images) if images.n_source is None else images.n_source
        names = _ImageNames(images)
        with closing(_file_pairs(path, n_images, console or Console(stderr=True), names.has)) as pairs:
            return _match(pairs, names, f"{shorten(path)}: ")
    if hasattr(labels, "columns"):
        names = _ImageNames(images)
        return _match(_frame_pairs(labels, names.has), names)
    if isinstance(labels, Mapping) or _has_text_index(labels):
        return _match(((str(name), class_name(label)) for name, label in labels.items()), _ImageNames(images))
    if getattr(labels, "ndim", 1) != 1 or not isinstance(labels, Iterable):
        raise LabelError(
            "labels must be a CSV or parquet file, a mapping from paths, or a flat sequence with one label per image"
        )
    labels = as_list("labels", labels)
    if len(labels) != len(images):
        noun = images.noun
        raise LabelError(f"{len(labels)} labels do not fit {len(images)} {noun}s; give one per {noun}, -1 = unlabelled")
    # A sequence cannot omit an image, so an empty label in it does not remove an earlier one.
    return Labels([class_name(label) for label in labels], [False] * len(labels))


def label_pairs(
    labels: Any, root: Path | None = None, n_images: int = UNCOUNTED, console: Console | None = None
) -> Iterator[tuple[str, str | None]]:
    """Names and labels of a file, a mapping or a data frame, without the images; paths in ``root`` become relative.

    ``n_images`` sets the limits of a file.
    """
    images = ImageSet([], FileSource([]), root)
    pairs: Iterable[tuple[str, str | None]]
    if isinstance(labels, str | os.PathLike):
        pairs = _file_pairs(check_path("labels", labels), n_images, console or Console(quiet=True))
    elif hasattr(labels, "columns"):
        pairs = _frame_pairs(labels)
    elif isinstance(labels, Mapping) or _has_text_index(labels):
        pairs = ((str(name), class_name(label)) for name, label in labels.items())
    else:
        raise LabelError("labels of a sample name their images: give a CSV or parquet file, or a mapping from paths")
    return ((_as_image_name(name, images), label) for name, label in pairs)


def class_name(label: Any) -> str | None:
    """The class name of a label; None for -1, NaN, None and empty text."""
    try:
        label = label.item() if hasattr(label, "item") else label  # a NumPy or torch scalar
        is_scalar = isinstance(label, str) or not isinstance(label, Iterable)
    except (ValueError, RuntimeError):  # of several values
        is_scalar = False
    if not is_scalar:
        raise LabelError(f"a label must be a text or a number, not {type(label).__name__} {shorten(label)!r}")
    if label is None or _is_missing(label):
        return None
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = str(label).strip()
    if "\0" in text or not is_unicode(text):
        raise LabelError(f"the label {shorten(ascii(text))} has a NUL character or is not valid Unicode; rename it")
    return None if text in ("", "-1", "-1.0") else unicodedata.normalize("NFC", text)


def is_unicode(text: str) -> bool:
    """Whether the text can be written to a file: half of a surrogate pair cannot."""
    return text.isascii() or text.encode("utf-8", "ignore").decode() == text


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


def _frame_pairs(frame: Any, is_image: IsImage | None = None) -> list[tuple[str, str | None]]:
    """Paths and labels of a data frame. With ``is_image``, two columns may have any names, as in a file."""
    columns = list(frame.columns)
    header = [str(column) for column in columns]
    found = find_columns(header)
    if found is None and is_image is not None and len(set(columns)) == len(columns) == 2:
        first_rows = zip(*(list(frame[column])[:MOST_PROBED] for column in columns), strict=True)
        rows = [[str(value) for value in row] for row in first_rows]
        path = path_column_by_values(header, rows, is_image)
        if path is not None:
            warn_of_columns("the data frame of labels", header, path)
            found = path, 1 - path
    if found is None or len(set(columns)) < len(columns):
        shown = shorten(", ".join(map(str, columns)), 200)
        raise LabelError(f"a data frame of labels needs one column path and one column label; it has {shown or 'none'}")
    names, labels = (list(frame[columns[position]]) for position in found)
    return [(str(name), class_name(label)) for name, label in zip(names, labels, strict=True)]


def class_numbers(names: Sequence[str | None]) -> tuple[np.ndarray, list[str]]:
    """Class numbers (-1 = unlabelled) and the class names by number, in natural order."""
    classes = sorted({n for n in names if n is not None}, key=_natural)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([-1 if n is None else number[n] for n in names], dtype=np.int64), classes


def class_count_fault(n_classes: int, n_known: int, n_unlabelled: int, noun: str = "image") -> str | None:
    """Why images with labels of ``n_known`` classes cannot be sorted into ``n_classes`` categories, if so."""
    if n_known > n_classes:
        return f"the labels name {n_known} classes but --n-classes is {n_classes}; raise it to at least {n_known}"
    if n_classes - n_known > n_unlabelled:
        return f"{n_unlabelled} unlabelled {noun}s cannot form {n_classes - n_known} new categories; lower --n-classes"
    return None


def spelled_differently(names: Iterable[str]) -> list[list[str]]:
    """Groups of names that differ only in letter case."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() and name.isascii() else (1, 0, name)


def _file_pairs(
    path: Path, n_images: int, console: Console, is_image: IsImage | None = None
) -> Generator[tuple[str, str | None], None, None]:
    """Paths and labels of a file; the progress of a large one is shown."""
    is_large = path.is_file() and path.stat().st_size >= _SHOW_PROGRESS_FROM
    with show_progress(console if is_large else Console(quiet=True), "reading labels, %", 100) as show:
        rows = read_rows(path, n_images, lambda share: show(int(100 * share)), is_image)
        remembered = lru_cache(_MOST_REMEMBERED)(class_name)  # most labels are repeated
        yield from ((name, (remembered if isinstance(label, str) else class_name)(label)) for name, label in rows)


class _ImageNames:
    """The names of images, and which of them a path means."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images
        self.names = [normal_name(name) for name in images.names]
        self.known = set(self.names)

    @cached_property
    def _similar(self) -> "SimilarNames":
        return SimilarNames(self.names)

    def candidates(self, name: str) -> tuple[list[str], bool]:
        """The images that a path, which is no name, may mean, and whether it is one image for sure.

        Of a sample there are none: an image of a similar name may be the only one that was drawn.
        """
        if self.images.n_source is not None:
            return [], False
        found = self._similar.of(name)
        return found, len(found) == 1 and _ends_like(name, found[0])

    def has(self, path: str) -> bool:
        """Whether a text means one of the images."""
        if not path or "\0" in path or len(path) > _MAX_PATH:
            return False
        name = _as_image_name(path, self.images)
        return name in self.known or self.candidates(name)[1]


def _match(pairs: Iterable[tuple[str, str | None]], found: _ImageNames, where: str = "") -> Labels:
    """Labels in the order of the images; a label for an unknown image is an error.

    Images without a label may be missing in a sample. ``where`` is the start of an error, which names the file.
    """
    images, names = found.images, found.names
    by_name: dict[str, str | None] = {}
    matched: list[tuple[str, str]] = []
    unknown: list[tuple[str, list[str]]] = []
    for path, label in pairs:
        name = _as_image_name(path, images)
        if name not in found.known:
            if images.n_source is not None and label is None:
                continue
            candidates, is_one = found.candidates(name)
            if not is_one:
                unknown.append((path, candidates))
                if len(unknown) > _MAX_UNKNOWN:
                    break
                continue
            name = candidates[0]
            matched.append((path, name))
        if by_name.setdefault(name, label) != label:
            first, second = shorten(repr(by_name[name])), shorten(repr(label))
            raise LabelError(f"{where}{shorten(path)} has two labels, {first} and {second}; keep one of them")
    if unknown:
        raise LabelError(where + _unknown_message(unknown, names, images))
    if matched:
        path, name = matched[0]
        labels = "1 label has another path than its image"
        if len(matched) > 1:
            labels = f"{len(matched)} labels have other paths than their images"
        warn(
            f"{labels}; matched by the end of the path, such as {shorten(path)} to {shorten(name)}",
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
    if len(unknown) > _MAX_UNKNOWN:
        more = f" and at least {_MAX_UNKNOWN} more"
    if Path(path).suffix.lower() in HEIC_SUFFIXES and not reads_heic():
        remedy = HEIC_REMEDY
    elif images.n_source is not None:
        kind = "paths" if images.noun == "image" else "ids"
        remedy = f"with a sample, labels need the exact {kind} of the source, as in {shorten(images.names[0])}"
    elif len(candidates) == 1:
        remedy = f"did you mean {shorten(candidates[0])}?"
    elif candidates:
        remedy = f"it may be {shorten(candidates[0])} or {shorten(candidates[1])}: write the folder too"
    elif close := _close_name(path, names):
        remedy = f"did you mean {shorten(close)}?"
    else:
        like = f"as in {shorten(images.names[0])}"
        remedy = "write paths relative to the image folder" if images.root is not None else f"write paths {like}"
        remedy = remedy if images.noun == "image" else f"write ids {like}"
    return f"there is a label for {shorten(path)}{more}, but no such {images.noun}; {remedy}"


def _close_name(path: str, names: Sequence[str]) -> str | None:
    if len(path) > _MAX_COMPARED_PATH:
        return None
    close = difflib.get_close_matches(path, itertools.islice(names, _MAX_COMPARED), n=1, cutoff=0.8)
    return close[0] if close else None


def _as_image_name(path: str, images: ImageSet) -> str:
    if "\0" in path or len(path) > _MAX_PATH:
        raise LabelError(f"the labels have {shorten(ascii(path))}, which is no path of a file; check their column path")
    if images.root is not None and os.path.isabs(path):
        real = Path(os.path.realpath(path)), Path(os.path.realpath(images.root))
        for file, root in ((Path(path), images.root.absolute()), real):
            if file.is_relative_to(root):
                return normal_name(str(file.relative_to(root)))
    return normal_name(path)


def normal_name(name: str) -> str:
    """A path without ./ and with composed accents (some systems store them decomposed)."""
    if _NORMAL.fullmatch(name):  # fast path: nearly all names, and there may be millions
        return name
    return unicodedata.normalize("NFC", Path(name).as_posix())
