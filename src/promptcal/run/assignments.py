"""The category of each image, as a table with one row per image (`assignments.csv`)."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from promptcal.errors import RunError
from promptcal.run.summary import categories_table
from promptcal.runtime import files
from promptcal.runtime.frames import data_frame
from promptcal.runtime.json_model import damaged

if TYPE_CHECKING:
    from promptcal.discovery.partition import RankedClusters

_BLOCK = 4096  # rows whose text is in memory at a time
_COLUMNS_BY_IMAGE = (
    *("paths", "clusters", "confidence", "labelled", "second", "second_confidence"),
    *("similarity", "accepted", "stability"),
)
_LONGEST_LINE = 2**20  # characters; a path and a name have far fewer


@dataclass(frozen=True)
class Assignments:
    """The category of each image, with its probability as confidence.

    Attributes:
        paths: The images (n).
        clusters: The number of each image's category (n).
        confidence: Its calibrated probability (n).
        names: The name of each category (not of each image).
        known: Whether each category is a class with labels.
        labelled: Whether each image has a label (n).
        second: The most likely other category of each image (n), -1 if there is none.
        second_confidence: Its probability (n).
        similarity: Of new images: the cosine with the nearest centroid (n).
        accepted: Of new images: whether that is enough to belong to any category (n).
        stability: Of the fit's images: share of the read-out's heads that agree on the category (n).
    """

    paths: list[str]
    clusters: np.ndarray
    confidence: np.ndarray
    names: list[str]
    known: list[bool]
    labelled: np.ndarray
    second: np.ndarray
    second_confidence: np.ndarray
    similarity: np.ndarray | None = None
    accepted: np.ndarray | None = None
    stability: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        paths: list[str],
        ranked: "RankedClusters",
        names: list[str],
        known: list[bool],
        labelled: np.ndarray,
        *,
        similarity: np.ndarray | None = None,
        accepted: np.ndarray | None = None,
        stability: np.ndarray | None = None,
    ) -> "Assignments":
        """From the category of each image and its probability, and the next one (`rank_clusters`)."""
        second = (ranked.second, ranked.second_confidence)
        others = (similarity, accepted, stability)
        return cls(paths, ranked.clusters, ranked.confidence, names, known, labelled, *second, *others)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"Assignments({self.description})"

    def _repr_html_(self) -> str:
        return categories_table(self)

    @property
    def description(self) -> str:
        """Numbers of images and categories in one line."""
        n_known = sum(self.known)
        rejected = 0 if self.accepted is None else int((~self.accepted).sum())
        none = f", {rejected} images in none of them" if rejected else ""
        return f"{len(self)} images, {n_known} known and {len(self.known) - n_known} new categories{none}"

    def category_stability(self) -> np.ndarray | None:
        """The mean stability of the unlabelled images of each category; NaN for a category without any."""
        if self.stability is None:
            return None
        of = self.clusters[~self.labelled]
        sums = np.bincount(of, weights=self.stability[~self.labelled], minlength=len(self.names))
        counts = np.bincount(of, minlength=len(self.names))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    @property
    def mean_stability(self) -> float | None:
        """The mean stability of the unlabelled images."""
        if self.stability is None or bool(self.labelled.all()):
            return None
        return float(self.stability[~self.labelled].mean())

    @property
    def categories(self) -> list[str]:
        """The name of each image's category (n)."""
        return [self.names[c] for c in self.clusters.tolist()]

    def kind(self, cluster: int) -> str:
        """known or new."""
        return "known" if self.known[cluster] else "new"

    def table(self) -> dict[str, list[Any]]:
        """The columns of `assignments.csv`.

        Returns:
            A list of n values by the name of the column; None where there is no second category.
        """
        kinds = [self.kind(c) for c in range(len(self.names))]
        names = [*self.names, None]  # -1: no second category
        second_confidence = zip(self.second.tolist(), self.second_confidence.tolist(), strict=True)
        table = {
            "path": self.paths,
            "cluster": self.clusters.tolist(),
            "name": self.categories,
            "kind": [kinds[c] for c in self.clusters.tolist()],
            "confidence": self.confidence.tolist(),
            "labelled": self.labelled.tolist(),
            "second": [names[c] for c in self.second.tolist()],
            "second_confidence": [None if c < 0 else confidence for c, confidence in second_confidence],
        }
        if self.stability is not None:
            table["stability"] = self.stability.tolist()
        if self.similarity is not None and self.accepted is not None:
            table["similarity"] = self.similarity.tolist()
            table["decision"] = ["accepted" if accepted else "none" for accepted in self.accepted]
        return table

    def to_pandas(self) -> Any:
        """The assignments for pandas, which must be installed.

        Returns:
            A data frame with one row per image and the columns of `assignments.csv`.
        """
        return data_frame(self.table())

    def to_csv(self) -> str:
        """The text of `assignments.csv`.

        Returns:
            A header and one line per image.
        """
        return files.csv_text(*self._cells())

    def write_csv(self, file: Path) -> None:
        files.write_rows(file, *self._cells())

    def _cells(self) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The header and the rows; the text of a part of them is in memory at a time."""
        blocks = (self._rows(slice(first, first + _BLOCK)) for first in range(0, len(self), _BLOCK))
        rows = (zip(*map(_column_cells, block.table().values()), strict=True) for block in blocks)
        return list(self._rows(slice(0)).table()), chain.from_iterable(rows)

    def _rows(self, part: slice) -> "Assignments":
        columns = {name: column[part] for name in _COLUMNS_BY_IMAGE if (column := getattr(self, name)) is not None}
        return replace(self, **columns)

    @classmethod
    def read_csv(cls, file: Path, names: list[str], known: list[bool]) -> "Assignments":
        """The assignments of a run with these categories; a `RunError` if the file does not fit them."""
        rows = read_csv_rows(file, "path", "cluster", "confidence", "labelled", "second", "second_confidence")
        number = {name: i for i, name in enumerate(names)}
        try:
            values = [  # not the text of all rows, which takes several times the memory
                (
                    as_text(row["path"]),
                    int(row["cluster"]),
                    float(row["confidence"]),
                    row["labelled"] == "yes",
                    number.get(row["second"], -1),
                    float(row["second_confidence"] or 0),
                    float(row["stability"]) if "stability" in row else None,
                )
                for row in rows
            ]
            paths, clusters, confidence, labelled, second, second_confidence, stability = (
                map(list, zip(*values, strict=True)) if values else ([] for _ in range(7))
            )
            found = cls(
                paths,
                np.array(clusters, dtype=np.int64),
                np.array(confidence, dtype=np.float64),
                names,
                known,
                np.array(labelled, dtype=bool),
                np.array(second, dtype=np.int64),
                np.array(second_confidence, dtype=np.float64),
                stability=np.array(stability) if stability and stability[0] is not None else None,
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise damaged(file, error) from error
        if not ((found.clusters >= 0) & (found.clusters < len(names))).all():
            raise damaged(file, "a cluster number that the run does not have")
        for name in ("confidence", "second_confidence", "stability"):
            shares = getattr(found, name)
            if shares is not None and not ((shares >= 0) & (shares <= 1)).all():  # also if one is not a number
                raise damaged(file, f"a {name} that is not a number from 0 to 1")
        return found


def category_names(classes: Sequence[str], n_clusters: int) -> list[str]:
    """The known classes, then new-1, new-2, ...; a name that a known class has is skipped."""
    unused = (name for i in range(1, 2 * n_clusters + 1) if (name := f"new-{i}") not in classes)
    return [*classes, *(next(unused) for _ in range(n_clusters - len(classes)))]


def read_csv_rows(file: Path, *columns: str) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file that the fit wrote; a `RunError` if it cannot be read or lacks one of the columns."""
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(_lines(opened))
            if not set(columns) <= set(reader.fieldnames or ()):
                raise ValueError("a column is missing")
            yield from reader
    except OSError as error:
        raise RunError(f"{file} cannot be read ({error.strerror}); fit again with --overwrite") from error
    except (ValueError, csv.Error) as error:
        raise damaged(file, error) from error


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ValueError("a line that is too long")
        if "\0" in line:  # no path and no name has one
            raise ValueError("a text with a NUL character")
        yield line


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _column_cells(values: list[Any]) -> list[Any]:
    """The values of a column as text; a column has one type, beside None."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, bool):
        return ["yes" if value else "no" for value in values]
    if isinstance(first, float):
        return ["" if value is None else f"{value:.4f}" for value in values]
    return ["" if value is None else value for value in values]
