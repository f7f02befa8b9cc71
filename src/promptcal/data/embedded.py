"""The images that come with the package: 2,000 of CIFAR-10 (see assets/README.md for their origin)."""

from importlib import resources
from typing import NamedTuple

import numpy as np

from promptcal.errors import DataError


class EmbeddedSet(NamedTuple):
    """uint8 images N x 32 x 32 x 3, class numbers, and class names by number."""

    images: np.ndarray
    labels: np.ndarray
    classes: list[str]


def embedded_set(split: str = "train") -> EmbeddedSet:
    """150 "train" or 50 "test" images of each of the 10 classes."""
    if split not in ("train", "test"):
        raise DataError(f"the embedded images have no split {split!r}; choose train or test")
    number = ("train", "test").index(split)
    with (resources.files("promptcal.data") / "assets" / "cifar10_mini.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        of_split = archive["split"] == number
        return EmbeddedSet(
            archive["images"][of_split],
            archive["labels"][of_split].astype(np.int64),
            [str(c) for c in archive["classes"]],
        )
