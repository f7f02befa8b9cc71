"""`FeatureSet`: feature vectors that another model computed, each with an id."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcal.data.feature_files import FeatureTable, check_ids, check_rows, read_feature_file, rows_of_array
from promptcal.data.image_files import HEIC_SUFFIXES, SUFFIXES
from promptcal.data.images import ImageSet
from promptcal.data.sources import FileSource, TextSource
from promptcal.data.store import HOST_SHARE
from promptcal.errors import DataError, shorten
from promptcal.runtime.arguments import as_list, check_path
from promptcal.runtime.free_memory import free_host_memory

ROW = "row"  # what messages call an element of a feature set


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Rows of numbers with an id each. ``origin`` is what messages call it, ``path`` its file, if it has one.

    Without ids, rows are named by their numbers: 0, 1, ... ``n_source`` is that of `ImageSet`.
    """

    names: list[str]
    table: FeatureTable
    origin: str
    path: Path | None
    has_ids: bool
    n_source: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def width(self) -> int:
        return self.table.width

    @classmethod
    def of(cls, features: Any, ids: Any = None) -> "FeatureSet":
        """From a file, an array, a tensor, or a data frame of numbers, whose index gives the ids if it is text.

        ``ids`` is a text file with one id in each line, or a sequence.
        """
        if isinstance(features, FeatureSet):
            return features
        path: Path | None = None
        if isinstance(features, str | os.PathLike):
            path = check_path("features", features)
            table, origin = read_feature_file(path), str(path)
        else:
            is_frame = hasattr(features, "columns") and hasattr(features, "index")
            if ids is None and is_frame and all(isinstance(name, str) for name in features.index):
                ids = list(features.index)
            table, origin = rows_of_array(_as_array(features), "the array of features"), "the array of features"
        check_rows(table.n, origin)
        found = table.ids if ids is None else _ids(ids)
        if found is None:
            return cls([str(i) for i in range(table.n)], table, origin, path, has_ids=False)
        names = check_ids(found, table.n, origin if ids is None else _origin_of(ids))
        return cls(names, table, origin, path, has_ids=True)

    def check_width(self, width: int) -> None:
        if self.width != width:
            raise DataError(
                f"{self.origin} has rows of {self.width} numbers and the run has {width}; give features of the same "
                "model"
            )

    def embeddings(self, scratch: Path | None = None, on_progress: Callable[[int], None] = lambda done: None) -> Tensor:
        """The rows as float32 vectors of length 1; a row that is not finite or is 0 is a `DataError`.

        If they need more than half of the free memory, they are in a file without a name in the folder ``scratch``.
        """
        size = len(self) * self.width * 4
        if scratch is None or size <= HOST_SHARE * free_host_memory():
            if size > free_host_memory():
                raise DataError(f"{self.origin} needs {size / 2**30:,.0f} GB of memory; give fewer rows at a time")
            array = np.empty((len(self), self.width), dtype=np.float32)
            self._read(lambda first, rows: array.__setitem__(slice(first, first + len(rows)), rows), on_progress)
            return torch.from_numpy(array)
        with tempfile.TemporaryFile(dir=scratch) as file:
            self._read(lambda first, rows: file.write(rows.tobytes()), on_progress)
            file.flush()
            mapped = np.memmap(file, np.float32, "c", shape=(len(self), self.width))  # stays mapped after closing
            return torch.from_numpy(mapped)

    def _read(self, write: Callable[[int, np.ndarray], Any], on_progress: Callable[[int], None]) -> None:
        first = 0
        for block in self.table.blocks():
            write(first, self._unit_rows(block, first))
            first += len(block)
            on_progress(first)

    def _unit_rows(self, block: np.ndarray, first: int) -> np.ndarray:
        rows = block.astype(np.float64)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        if not np.isfinite(largest).all():
            raise DataError(f"{self._row(~np.isfinite(largest), first)} has a value that is NaN or infinite; remove it")
        if not largest.all():
            raise DataError(f"{self._row(largest == 0, first)} has only zeros, so it has no direction; remove it")
        rows /= largest  # so that no square overflows
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def _row(self, wrong: np.ndarray, first: int) -> str:
        number = first + int(wrong.ravel().argmax())
        name = f" ({shorten(self.names[number])})" if self.has_ids else ""
        return f"row {number}{name} of {self.origin}"

    def pictures(self, folder: Path | None) -> ImageSet:
        """The rows as images: the files of a folder that the ids name, or tiles with the ids as text."""
        if folder is None:
            return ImageSet(self.names, TextSource(self.names), noun=ROW, n_source=self.n_source)
        if not folder.is_dir():
            raise DataError(f"the image folder {folder} does not exist; check the path")
        if not self.has_ids:
            raise DataError(f"{self.origin} has no ids, so its rows cannot be found in {folder}; give --ids")
        files = _picture_files(folder, self.names)
        return ImageSet(self.names, FileSource(files), folder, noun=ROW, n_source=self.n_source)


def _picture_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The file of each id: the id is its path in the folder, with or without its suffix."""
    suffixes = [s for suffix in sorted(SUFFIXES | HEIC_SUFFIXES) for s in (suffix, suffix.upper())]
    files = []
    for name in names:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise DataError(f"the id {shorten(name)} lies outside of {folder}; ids are paths in the folder")
        candidates = (folder / f"{name}{suffix}" for suffix in ("", *suffixes))
        found = next((file for file in candidates if file.is_file()), None)
        if found is None:
            raise DataError(f"{folder} has no image for the id {shorten(name)}; ids are paths in the folder")
        files.append(found)
    return files


def _as_array(features: Any) -> Any:
    if isinstance(features, np.ndarray | Tensor):
        return features
    if hasattr(features, "to_numpy"):
        return features.to_numpy()
    try:
        return np.asarray(features)
    except (ValueError, TypeError) as error:
        raise DataError("features must be a file, or an array of rows x numbers whose rows have one length") from error


def _ids(ids: Any) -> list[str]:
    if isinstance(ids, str | os.PathLike):
        path = check_path("ids", ids)
        if not path.is_file():
            raise DataError(f"the file of ids {path} does not exist; check the path")
        try:
            return path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not text ({error.reason}); write one id in each line, as UTF-8") from error
    return [str(name) for name in as_list("ids", ids)]


def _origin_of(ids: Any) -> str:
    return str(ids) if isinstance(ids, str | os.PathLike) else "the list of ids"
