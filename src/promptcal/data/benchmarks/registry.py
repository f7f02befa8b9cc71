"""Benchmarks by name: a dataset, the share of its known classes that is labelled, and how it is evaluated.

Class numbers are the dataset's own, from 0, and are never renumbered: known classes are a set of them, not the first.
"""

import os
import tarfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from promptcal.data.benchmarks import class_lists
from promptcal.data.benchmarks.catalogue import (
    AIRCRAFT,
    CARS,
    CIFAR10,
    CIFAR100,
    CUB,
    HERBARIUM19,
    IMAGENET100,
    MINI,
    Dataset,
    Source,
)
from promptcal.data.benchmarks.parts import Part, incomplete
from promptcal.data.images import ImageSet
from promptcal.data.splits import label_half
from promptcal.errors import DataError, PromptCALWarning

ROOT_VARIABLE = "PROMPTCAL_DATA"
INDUCTIVE = "-inductive"
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Images to train on, what is true of them, and what of that may be told.

    The inductive variants also have a mask of the training images held out for selection, and test images.
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

    def labels(self) -> list[str | None]:
        """The class name of each labelled training image, None of the others."""
        return [self.class_names[c] if told else None for c, told in zip(self.classes, self.labelled, strict=True)]

    def truth(self) -> list[str]:
        return [self.class_names[c] for c in self.classes]

    def test_truth(self) -> list[str]:
        return [] if self.test_classes is None else [self.class_names[c] for c in self.test_classes]


@dataclass(frozen=True)
class Setup:
    """A benchmark before it is read. ``few_known`` classes replace the dataset's own known ones."""

    name: str
    dataset: Dataset
    share: float = 0.5
    few_known: int | None = None
    inductive: bool = False

    @property
    def known(self) -> list[int]:
        if self.few_known is None:
            return self.dataset.known()
        return class_lists.few_of_cifar100(self.few_known) if self.dataset is CIFAR100 else list(range(self.few_known))

    def source(self, root: Path) -> Source | None:
        """The first of the dataset's layouts that is there and has all that the setup needs."""
        usable = (s for s in self.dataset.sources if s.has_test or not self.inductive)
        return next((s for s in usable if s.is_there(root)), None)

    @property
    def preset(self) -> str:
        """The preset with its hyper-parameters, the same for both protocols."""
        return self.dataset.preset or self.name.removesuffix(INDUCTIVE)


@dataclass(frozen=True)
class Listing:
    """A benchmark as `promptcal datasets` shows it; ``found`` is None where it is absent.

    What comes with the package is not looked for.
    """

    setup: Setup
    looked_for: list[Path]
    found: Path | None


_DATASETS = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "imagenet100": IMAGENET100,
    "cub": CUB,
    "cars": CARS,
    "aircraft": AIRCRAFT,
    "herbarium19": HERBARIUM19,
    "mini": MINI,
}
_SETUPS = {
    s.name: s
    for s in (
        *(Setup(name, dataset) for name, dataset in _DATASETS.items()),
        Setup("cifar100-c50-l10", CIFAR100, share=0.1, few_known=50),
        Setup("cifar100-c25-l50", CIFAR100, share=0.5, few_known=25),
        Setup("cifar100-c10-l50", CIFAR100, share=0.5, few_known=10),
        Setup("mini-c50-l10", MINI, share=0.1, few_known=5),
        Setup("mini-c30-l50", MINI, share=0.5, few_known=3),
        Setup("mini-c20-l50", MINI, share=0.5, few_known=2),
        *(Setup(f"{name}{INDUCTIVE}", dataset, inductive=True) for name, dataset in _DATASETS.items()),
    )
}


def benchmark_names() -> list[str]:
    return list(_SETUPS)


def setup(name: str) -> Setup:
    if name not in _SETUPS:
        raise DataError(f"there is no benchmark {name!r}; choose one of {', '.join(_SETUPS)}")
    return _SETUPS[name]


def default_root() -> Path:
    """The folder named by the environment variable PROMPTCAL_DATA, or ./data."""
    return Path(os.environ.get(ROOT_VARIABLE) or "data")


def listing(root: str | os.PathLike[str] | None = None) -> list[Listing]:
    folder = default_root() if root is None else Path(root)
    rows = []
    for entry in _SETUPS.values():
        source = entry.source(folder)
        looked_for = [folder / s.place for s in entry.dataset.sources if not s.embedded]
        rows.append(Listing(entry, looked_for, None if source is None else folder / source.place))
    return rows


def benchmark(name: str, root: str | os.PathLike[str] | None = None, download: bool = False) -> Benchmark:
    """Read a benchmark from below ``root`` (by default `default_root`), fetching it first if asked to and possible."""
    entry = setup(name)
    folder = default_root() if root is None else Path(root)
    if download and entry.source(folder) is None:
        _download(entry.dataset, folder)
    source = entry.source(folder)
    if source is None:
        raise DataError(_absent(entry, folder))
    train = _read(entry, source, folder, test=False)
    _warn_if_not_the_published_set(entry, source, train)
    labelled = label_half(train.classes, entry.known, entry.share)
    test = _read(entry, source, folder, test=True) if entry.inductive else None
    return Benchmark(
        name,
        train.images,
        train.classes,
        train.class_names,
        np.array(entry.known, dtype=np.int64),
        labelled,
        hold_out_both(labelled, train.classes) if entry.inductive else None,
        None if test is None else test.images,
        None if test is None else test.classes,
    )


def hold_out_both(labelled: np.ndarray, classes: np.ndarray, share: float = VALIDATION_SHARE) -> np.ndarray:
    """Mask of the images held out for selection: ``share`` of the labelled and of the unlabelled ones, rounded down.

    Drawn as the labels are: by position, uniformly over instances, NumPy's legacy generator with seed 0. Where that
    would take all labels of a class, its first labelled image is left in training.
    """
    generator = np.random.RandomState(0)
    mask = np.zeros(len(labelled), dtype=bool)
    for group in (np.flatnonzero(labelled), np.flatnonzero(~labelled)):
        mask[group[generator.choice(len(group), replace=False, size=int(share * len(group)))]] = True
    for lost in np.setdiff1d(classes[labelled], classes[labelled & ~mask]):
        mask[np.flatnonzero(labelled & (classes == lost))[0]] = False
    return mask


def _read(entry: Setup, source: Source, root: Path, *, test: bool) -> Part:
    place = root / source.place
    part = source.read(place, test)
    n = entry.dataset.n_classes
    if len(part.class_names) != n:
        raise incomplete(place, f"{entry.dataset.title} has {n} classes, not {len(part.class_names)}")
    present = np.unique(part.classes)
    if present.size and not 0 <= present[0] <= present[-1] < n:
        raise incomplete(place, f"it has classes outside of 1 to {n}")
    if not test and len(present) < n:
        raise incomplete(place, f"only {len(present)} of {n} classes have training images")
    if test and not len(part.images):
        raise incomplete(place, "it has no test images")
    return part


def _warn_if_not_the_published_set(entry: Setup, source: Source, train: Part) -> None:
    expected, found = entry.dataset.n_images, len(train.images)
    if entry.dataset.exact and found != expected:
        reason = f"has {found:,} training images, not the published {expected:,}"
    elif not source.in_published_order:
        reason = "holds the images in another order than the original, so other ones are labelled"
    else:
        return
    message = f"{source.place} {reason}; compare results with each other, not with published ones"
    warnings.warn(message, PromptCALWarning, stacklevel=3)


def _absent(entry: Setup, root: Path) -> str:
    dataset = entry.dataset
    looked_for = ", ".join(s.place for s in dataset.sources)
    without_test = [s.place for s in dataset.sources if not s.has_test and (root / s.place).exists()]
    if entry.inductive and without_test:
        return f"{without_test[0]} in {root} has no test images, which {entry.name} needs; {dataset.remedy}"
    return f"{dataset.title} is not in {root} (looked for {looked_for}); {dataset.remedy}"


def _download(dataset: Dataset, root: Path) -> None:
    if dataset.download is None:
        raise DataError(f"{dataset.title} cannot be downloaded into {root} by a program; {dataset.remedy}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        dataset.download(root)
    except (OSError, RuntimeError, EOFError, tarfile.TarError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = dataset.remedy.removeprefix("pass --download, or ")
        raise DataError(f"{dataset.title} could not be downloaded ({reason}); try again, or {remedy}") from error
