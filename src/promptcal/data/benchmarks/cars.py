"""Stanford Cars in torchvision's layout: devkit/, cars_train/, cars_test/ and the test annotations with labels."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from promptcal.data.benchmarks.dataset_files import Split, incomplete, listed_files


def read_cars(folder: Path, test: bool) -> Split:
    """In the order of the annotations; class number = the annotated class - 1."""
    if test:
        labelled = "cars_test_annos_withlabels.mat"  # torchvision stores it beside the devkit, others inside it
        file = next((f for f in (folder / labelled, folder / "devkit" / labelled) if f.is_file()), folder / labelled)
    else:
        file = folder / "devkit" / "cars_train_annos.mat"
    annotations = np.atleast_1d(_matlab(folder, file, "annotations"))
    try:
        files = [str(name) for name in annotations["fname"]]
        classes = np.array([int(number) - 1 for number in annotations["class"]], dtype=np.int64)
    except (ValueError, IndexError, TypeError) as error:
        raise incomplete(folder, f"{file.name} has no file names and classes") from error
    names = np.atleast_1d(_matlab(folder, folder / "devkit" / "cars_meta.mat", "class_names"))
    images = listed_files(folder, [f"{'cars_test' if test else 'cars_train'}/{name}" for name in files])
    return Split(images, classes, [str(name) for name in names])


def _matlab(folder: Path, file: Path, variable: str) -> Any:
    if not file.is_file():
        raise incomplete(folder, f"{file.relative_to(folder)} is missing")
    try:
        return loadmat(file, squeeze_me=True)[variable]
    except (OSError, ValueError, LookupError, TypeError, NotImplementedError, MatReadError) as error:
        raise incomplete(folder, f"{file.relative_to(folder)} cannot be read ({error})") from error
