"""How a benchmark is declared and what it contains. This module imports no reader and no heavy library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from promptcal.data.images import ImageSet

INDUCTIVE = "-inductive"
DEVELOPMENT = "-dev"


class Split(NamedTuple):
    """Training or test images in the dataset's own order, their class numbers 0..C-1, and the C class names."""

    images: ImageSet
    classes: np.ndarray
    class_names: list[str]


@dataclass(frozen=True)
class Layout:
    """One way in which a dataset may be stored: a file or folder below the root folder, and its reader.

    Args:
        path: File or folder, relative to the root folder.
        reader: Function ``(path, test) -> Split`` that reads the training or the test images, as "module:function" or
            as a callable.
        in_published_order: Whether the images have the original order, on which the choice of labelled images depends.
        has_test: Whether the layout contains test images.
        embedded: Whether the data are part of an installed package, so that nothing is searched below the root folder.
    """

    path: str
    reader: str | Callable[[Path, bool], Split]
    in_published_order: bool = True
    has_test: bool = True
    embedded: bool = False

    def exists(self, root: Path) -> bool:
        return self.embedded or (root / self.path).exists()

    def read(self, root: Path, *, test: bool) -> Split:
        return resolve_object(self.reader)(root / self.path, test)


@dataclass(frozen=True)
class BenchmarkSpec:
    """A dataset, its known classes, and the share of their images that is labelled.

    Args:
        title: Name of the dataset in messages.
        n_images: Number of training images.
        n_classes: Number of classes. Class numbers are 0 to n_classes - 1 in the dataset's own order.
        known_classes: Class numbers of the known classes, or a function (or "module:function") that returns them.
        layouts: Ways in which the data may be stored. The first one that exists is read.
        remedy: What to do if the data are absent, e.g. "download X from URL and unpack it there".
        labelled_share: Share of the images of known classes that is labelled.
        preset: The benchmark's settings: the name of a preset, or a mapping section -> settings (sections of several
            methods are allowed); None for the defaults.
        has_exact_count: Whether a different number of training images is worth a warning.
        download: Function ``(root) -> None`` that downloads the data, or "module:function".
        name: Set by `get_benchmark`.
        inductive: Whether to hold out validation images and score the test images. Set by `get_benchmark`.
        development: Whether to read the development split (`development_split`). Set by `get_benchmark`.
    """

    title: str
    n_images: int
    n_classes: int
    known_classes: Sequence[int] | str | Callable[[], Sequence[int]]
    layouts: tuple[Layout, ...]
    remedy: str
    labelled_share: float = 0.5
    preset: str | Mapping[str, Any] | None = None
    has_exact_count: bool = True
    download: str | Callable[[Path], None] | None = None
    name: str = ""
    inductive: bool = False
    development: bool = False

    @property
    def known(self) -> list[int]:
        """The class numbers of the known classes, sorted."""
        classes = resolve_object(self.known_classes)
        return sorted(classes() if callable(classes) else classes)

    @property
    def n_run_classes(self) -> int:
        """The number of classes of a run: a development split has only the known ones."""
        return len(self.known) if self.development else self.n_classes

    @property
    def has_test(self) -> bool:
        return any(layout.has_test for layout in self.layouts)

    def find(self, root: Path) -> Layout | None:
        """The first layout that exists below ``root`` and has all images that the benchmark needs."""
        usable = (layout for layout in self.layouts if layout.has_test or not self.inductive)
        return next((layout for layout in usable if layout.exists(root)), None)


def resolve_object(item: Any) -> Any:
    """The object that "module:attribute" names; any other value is returned unchanged."""
    return resolve_name(item) if isinstance(item, str) else item
