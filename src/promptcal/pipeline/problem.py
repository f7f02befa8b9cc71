"""The problem of a fit: images, labels, and the truth that it is scored by."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from promptcal.data import ImageSet
from promptcal.data.labels import class_count_fault, class_numbers
from promptcal.discovery.known_share import ImageCounts
from promptcal.errors import DataError, LabelError
from promptcal.metrics import DiscoveryAccuracy, discovery_accuracy


@dataclass(frozen=True)
class Inductive:
    """The inductive protocol: training images held out to select by (a mask), test images and their true classes."""

    validation: np.ndarray
    test: ImageSet
    truth: list[str]


@dataclass(frozen=True)
class TestSet:
    """Test images and their true classes."""

    images: ImageSet
    truth: list[str]


@dataclass(frozen=True)
class Problem:
    """Images, their labels (-1 = unlabelled) and, for scoring only, the truth.

    With ``inductive`` it is the test images that are scored, otherwise the unlabelled ones. ``oracle`` are test images
    by which selection "oracle" keeps an epoch.
    """

    images: ImageSet
    labels: np.ndarray
    classes: list[str]
    truth: list[str | None] | None = None
    inductive: Inductive | None = None
    oracle: TestSet | None = None

    @classmethod
    def of(
        cls,
        images: ImageSet,
        labels: list[str | None],
        truth: list[str | None] | None = None,
        inductive: Inductive | None = None,
    ) -> "Problem":
        numbers, classes = class_numbers(labels)
        return cls(images, numbers, classes, truth, inductive)

    @property
    def can_be_scored(self) -> bool:
        return self.truth is not None or self.inductive is not None

    @property
    def protocol(self) -> Literal["transductive", "inductive"]:
        return "transductive" if self.inductive is None else "inductive"

    @property
    def counts(self) -> ImageCounts:
        """Labelled and unlabelled images, of the whole source if these are a sample of it."""
        n_labelled = int((self.labels >= 0).sum())
        return ImageCounts(n_labelled, max(self.images.n_source or 0, len(self.images)) - n_labelled)

    @property
    def unlabelled_weight(self) -> float:
        """How many images of the source an unlabelled one stands for."""
        return self.counts.unlabelled / max(1, int((self.labels < 0).sum()))

    @property
    def test_set(self) -> TestSet | None:
        """The test images of the inductive protocol."""
        return None if self.inductive is None else TestSet(self.inductive.test, self.inductive.truth)

    def check(self, n_classes: int) -> None:
        n_unlabelled, noun = int((self.labels < 0).sum()), self.images.noun
        if len(self.images) < 2:
            raise DataError(f"{len(self.images)} {noun} cannot be sorted into categories; give at least 2")
        if n_unlabelled == 0:
            raise LabelError(f"every {noun} is labelled, so there is nothing to discover; add unlabelled {noun}s")
        self.check_number(n_classes)
        if self.inductive is not None and len(self.inductive.test) < n_classes:
            raise DataError(
                f"{len(self.inductive.test)} test images cannot be clustered into {n_classes} classes; give more"
            )

    def check_number(self, n_classes: int) -> None:
        """Reject a number of categories that the images and labels do not allow."""
        fault = class_count_fault(n_classes, len(self.classes), int((self.labels < 0).sum()), self.images.noun)
        if fault is not None:
            raise LabelError(fault)

    def kept(self, positions: list[int]) -> "Problem":
        """The problem without the images that could not be read."""
        if len(positions) == len(self.images):
            return self
        chosen = np.array(positions)
        truth = None if self.truth is None else [self.truth[i] for i in positions]
        labels = self.label_names()
        names = [labels[i] for i in positions]
        inductive = self.inductive and replace(self.inductive, validation=self.inductive.validation[chosen])
        images = replace(self.images.subset(positions), n_source=self.images.n_source)
        return replace(Problem.of(images, names, truth, inductive), oracle=self.oracle)

    def label_names(self) -> list[str | None]:
        """The label of each image by name."""
        return [None if n < 0 else self.classes[n] for n in self.labels]

    def score(self, clusters: np.ndarray) -> DiscoveryAccuracy:
        """Accuracy over the unlabelled images whose truth is known."""
        assert self.truth is not None
        scored = [i for i, t in enumerate(self.truth) if t is not None and self.labels[i] < 0]
        return discovery_accuracy([self.truth[i] for i in scored], clusters[scored], self.classes)

    def truth_numbers(self) -> np.ndarray | None:
        """Class numbers of the truth, known classes as in ``labels``, new ones after them, -1 = unknown."""
        if self.truth is None:
            return None
        new = sorted({t for t in self.truth if t is not None} - set(self.classes))
        number = {name: i for i, name in enumerate([*self.classes, *new])}
        return np.array([-1 if t is None else number[t] for t in self.truth], dtype=np.int64)
