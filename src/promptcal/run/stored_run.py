"""What is stored of a run: its categories, assignments and images. Reading it needs no network and no PyTorch."""

import itertools
import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from promptcal.data.decoding import is_image
from promptcal.data.images import ImageSet
from promptcal.data.sources import FileSource
from promptcal.errors import DataError, PromptCALWarning, RunError
from promptcal.run.assignments import Assignments, as_text, read_csv_rows
from promptcal.run.directory import RunDirectory
from promptcal.run.epoch_records import read_records
from promptcal.run.replacing import finish_replacing
from promptcal.runtime.json_model import damaged

if TYPE_CHECKING:
    import numpy as np


class StoredRun:
    """A run with a result, which may be the first one."""

    def __init__(self, path: str | PathLike[str], *, warn_if_unfinished: bool = True) -> None:
        self.directory = RunDirectory(path)
        finish_replacing(self.directory)
        self.info = self.directory.info()
        if not self.info.has_result:
            raise RunError(f"the run in {path} is not finished; run its fit again with --resume")
        if self.is_first_result and warn_if_unfinished:
            origin = "frozen backbone" if self.info.is_frozen else "weights of the previous run"
            warnings.warn(
                f"the training of {path} is not finished, so this is its first result, of the {origin}; let its fit "
                "end or run it again with --resume, unless this result is enough",
                PromptCALWarning,
                stacklevel=4,
            )
        self.directory.check_links()
        self.names: list[str] = self.info.categories
        classes = set(self.info.known_classes)
        self.known: list[bool] = [name in classes for name in self.names]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.info.n_images} images, {self._categories})"

    @property
    def is_first_result(self) -> bool:
        """Whether training is not finished, so that this is the result from before it."""
        return self.info.status == "training"

    @property
    def _categories(self) -> str:
        return f"{sum(self.known)} known and {len(self.known) - sum(self.known)} new categories"

    @property
    def path(self) -> Path:
        return self.directory.path

    def records(self) -> list[dict[str, Any]]:
        """The epochs of `metrics.jsonl`."""
        return read_records(self.directory.metrics_file)

    def assignments(self) -> Assignments:
        """What the fit assigned to its own images.

        Returns:
            The assignments in the order of `assignments.csv`.
        """
        return Assignments.read_csv(self._unchanged(self.directory.assignments_file), self.names, self.known)

    def _unchanged(self, file: Path) -> Path:
        try:
            self.directory.verify_checksum(file, self.info)
        except OSError as error:
            raise RunError(f"{file} cannot be read ({error}); fit again") from error
        return file

    def embeddings(self) -> "np.ndarray":
        """The embeddings of the fit's own images.

        Returns:
            L2-normalised embeddings in the order of the assignments (images x dim, float32).
        """
        from promptcal.run.stored import read_embeddings

        return read_embeddings(self._unchanged(self.directory.embeddings_file), len(self.assignments()))

    def mapped_embeddings(self, n_images: int) -> "np.memmap":
        """`embeddings`, of which only what is used is in memory."""
        from promptcal.run.stored import map_embeddings

        return map_embeddings(self._unchanged(self.directory.embeddings_file), n_images)

    def truth(self) -> list[str | None] | None:
        """The true class of each image in the order of the assignments, if the truth was given."""
        return self.truth_of(self.assignments().paths)

    def truth_of(self, paths: Sequence[str]) -> list[str | None] | None:
        """The true class of some images, if the truth was given."""
        file = self.directory.truth_file
        if not file.is_file():
            return None
        try:
            by_path = {as_text(row["path"]): as_text(row["label"]) for row in read_csv_rows(file, "path", "label")}
        except TypeError as error:
            raise damaged(file, error) from error
        return [by_path.get(path) for path in paths]

    def given_images(self) -> tuple[ImageSet, list[int]]:
        """The names of all images that the fit was given, and the positions among them of those it assigned."""
        names: list[str] = []
        rest = iter(self.assignments().paths)
        skipped: list[int] = []
        file = self.directory.skipped_file
        if file.exists():
            try:
                for row in read_csv_rows(file, "path", "position"):  # sorted by position
                    position = int(row["position"])
                    names += itertools.islice(rest, max(0, position - len(names)))
                    if position != len(names):
                        raise ValueError(f"the position {position}")
                    skipped.append(position)
                    names.append(as_text(row["path"]))
            except (ValueError, TypeError) as error:
                raise damaged(file, error) from error
        names += rest
        left_out = set(skipped)
        assigned = [i for i in range(len(names)) if i not in left_out]
        return ImageSet(names, FileSource([]), None if self.info.root is None else Path(self.info.root)), assigned

    def image_files(self) -> list[Path]:
        """The file of each image, in the order of the assignments."""
        names = self.assignments().paths
        if self.info.folder is None:
            raise DataError(
                f"the images of {self.path} are not files (but an array, a dataset or an archive), so none can be "
                "linked or copied; export to csv, or save them as files and fit those"
            )
        if self.info.root is not None:
            reject_path_traversal(names, self.path)
        images = [Path(self.info.folder) / name for name in names]
        missing = [image for image in images if not image.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more images do" if len(missing) > 1 else " does"
            raise DataError(f"{missing[0]}{more} not exist any more; restore the images where the fit found them")
        other = next((image for image in images if not is_image(image)), None)
        if other is not None:  # an untrusted run directory could name any file of this machine
            raise DataError(f"{other} is not an image; restore the images where the fit found them")
        return images


def reject_path_traversal(names: Sequence[str], run: Path) -> None:
    """Reject names of images in a folder that point outside of it."""
    for name in names:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise RunError(f"{run} names the image {name}, which lies outside of its image folder; do not trust it")
