"""Read a benchmark from disk. Class numbers are the data set's own, from 0; known classes are any of them."""

import os
import tarfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from promptcal.data.benchmarks.catalogue import default_root, get_benchmark
from promptcal.data.benchmarks.dataset_files import incomplete
from promptcal.data.benchmarks.spec import DEVELOPMENT, INDUCTIVE, BenchmarkSpec, Layout, Split, resolve_object
from promptcal.data.images import ImageSet
from promptcal.data.splits import label_half
from promptcal.errors import DataError, PromptCALWarning
from promptcal.runtime.files import make_folder

_VALIDATION_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class BenchmarkData:
    """Training images, true classes and a mask of the labelled ones.

    ``validation``, ``test`` and ``test_classes`` are for inductive benchmarks. ``difference`` says how the training
    images differ from those of the published values (None: not at all).
    """

    name: str
    train: ImageSet
    classes: np.ndarray
    class_names: list[str]
    known: np.ndarray
    labelled: np.ndarray
    validation: np.ndarray | None = None
    test: ImageSet | None = None
    test_classes: np.ndarray | None = None
    difference: str | None = None

    def labels(self) -> list[str | None]:
        """The class name of each labelled training image, None for the others."""
        pairs = zip(self.classes, self.labelled, strict=True)
        return [self.class_names[c] if is_labelled else None for c, is_labelled in pairs]

    def truth(self) -> list[str]:
        return [self.class_names[c] for c in self.classes]

    def test_truth(self) -> list[str]:
        return [] if self.test_classes is None else [self.class_names[c] for c in self.test_classes]


def load_benchmark(name: str, root: str | os.PathLike[str] | None = None, download: bool = False) -> BenchmarkData:
    """Read a benchmark from below ``root`` (by default `default_root`); ``download`` it first if it is absent."""
    spec = get_benchmark(name)
    folder = default_root() if root is None else Path(root)
    if download and spec.find(folder) is None:
        _download(spec, folder)
    layout = spec.find(folder)
    if layout is None:
        raise DataError(_absent_message(spec, folder))
    train = _read(spec, layout, folder, test=False)
    difference = _difference_to_published(spec, layout, train)
    if difference is not None:
        message = f"{difference}; compare these results with each other, not with published ones"
        warnings.warn(message, PromptCALWarning, stacklevel=2)
    labelled = label_half(train.classes, spec.known, spec.labelled_share)
    known = np.array(spec.known, dtype=np.int64)
    data = BenchmarkData(name, train.images, train.classes, train.class_names, known, labelled, difference=difference)
    if spec.development:
        return development_split(data, spec.labelled_share)
    if not spec.inductive:
        return data
    test = _read(spec, layout, folder, test=True)
    validation = hold_out_of_each_class(labelled, train.classes)
    return replace(data, validation=validation, test=test.images, test_classes=test.classes)


def load_test_images(name: str, root: str | os.PathLike[str] | None = None) -> tuple[ImageSet, list[str]]:
    """The test images of a benchmark and their class names."""
    folder = default_root() if root is None else Path(root)
    if name.endswith(DEVELOPMENT):
        raise DataError(f"{name} has no test images; use {name.removesuffix(DEVELOPMENT)}")
    spec = get_benchmark(f"{name.removesuffix(INDUCTIVE)}{INDUCTIVE}")
    layout = spec.find(folder)
    if layout is None:
        raise DataError(_absent_message(spec, folder))
    test = _read(spec, layout, folder, test=True)
    return test.images, [test.class_names[c] for c in test.classes]


def development_split(data: BenchmarkData, labelled_share: float) -> BenchmarkData:
    """A smaller benchmark from the labelled images alone, to choose settings without the images that are scored.

    Every second known class, in the order of the class numbers, stays known, and ``labelled_share`` of its images keep
    their labels. The other known classes act as new: their labels are hidden from the run and used only to score it.
    """
    chosen = np.flatnonzero(data.labelled)
    classes = np.searchsorted(data.known, data.classes[chosen])
    known = np.arange(0, len(data.known), 2)
    return BenchmarkData(
        data.name,
        data.train.subset(chosen.tolist()),
        classes,
        [data.class_names[c] for c in data.known],
        known,
        label_half(classes, known, labelled_share),
        difference=data.difference,
    )


def hold_out_of_each_class(labelled: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Mask of the validation images: a tenth of the images of each class, rounded down, labelled or not.

    Drawn like the labelled images: by position, NumPy's legacy generator with seed 0. If a class would lose all its
    labels, its first labelled image stays in training.
    """
    generator = np.random.RandomState(0)
    mask = np.zeros(len(labelled), dtype=bool)
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        mask[generator.choice(members, replace=False, size=int(_VALIDATION_SHARE * len(members)))] = True
    for lost in np.setdiff1d(classes[labelled], classes[labelled & ~mask]):
        mask[np.flatnonzero(labelled & (classes == lost))[0]] = False
    return mask


def _read(spec: BenchmarkSpec, layout: Layout, root: Path, *, test: bool) -> Split:
    split = layout.read(root, test=test)
    path, n = root / layout.path, spec.n_classes
    if len(split.class_names) != n:
        raise incomplete(path, f"{spec.title} has {n} classes, not {len(split.class_names)}")
    present = np.unique(split.classes)
    if present.size and not 0 <= present[0] <= present[-1] < n:
        raise incomplete(path, f"it has class numbers outside 1 to {n}")
    if not test and len(present) < n:
        raise incomplete(path, f"only {len(present)} of {n} classes have training images")
    if test and not len(split.images):
        raise incomplete(path, "it has no test images")
    return split


def _difference_to_published(spec: BenchmarkSpec, layout: Layout, train: Split) -> str | None:
    """How the training images differ from the published ones, which changes what is labelled; None: not at all."""
    expected, found = spec.n_images, len(train.images)
    if spec.has_exact_count and found != expected:
        return f"{layout.path} has {found:,} training images, not the published {expected:,}"
    if not layout.in_published_order:
        return f"{layout.path} has the images in a different order than the original, so different images are labelled"
    return None


def _absent_message(spec: BenchmarkSpec, root: Path) -> str:
    searched = ", ".join(layout.path for layout in spec.layouts)
    without_test = [layout.path for layout in spec.layouts if not layout.has_test and layout.exists(root)]
    if spec.inductive and without_test:
        return f"{without_test[0]} in {root} has no test images, which {spec.name} needs; {spec.remedy}"
    return f"{spec.title} is not in {root} (searched for {searched}); {spec.remedy}"


def _download(spec: BenchmarkSpec, root: Path) -> None:
    if spec.download is None:
        raise DataError(f"{spec.title} cannot be downloaded automatically into {root}; {spec.remedy}")
    try:
        make_folder(root)
        resolve_object(spec.download)(root)
    except (OSError, RuntimeError, EOFError, tarfile.TarError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = spec.remedy.removeprefix("pass --download, or ")
        raise DataError(f"{spec.title} could not be downloaded ({reason}); try again, or {remedy}") from error
