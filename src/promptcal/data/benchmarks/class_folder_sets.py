"""Benchmarks stored as class folders: ImageNet-100 (100 classes of ILSVRC 2012) and Herbarium19."""

from pathlib import Path

from promptcal.data.benchmarks.class_lists import imagenet100
from promptcal.data.benchmarks.dataset_files import Split, class_folders, incomplete


def read_imagenet100(folder: Path, test: bool) -> Split:
    """100 classes of train/ or val/, one sub-folder per WordNet id; class number = position among the 100."""
    wordnet_ids, names = zip(*imagenet100(), strict=True)
    images, classes = class_folders(folder, "val" if test else "train", wordnet_ids, allow_empty=False)
    return Split(images, classes, list(names))


def read_herbarium(folder: Path, test: bool) -> Split:
    """small-train/ or small-validation/; class number = position among small-train's folders sorted as text."""
    train = folder / "small-train"
    if not train.is_dir():
        raise incomplete(folder, "small-train is missing")
    names = sorted(entry.name for entry in train.iterdir() if entry.is_dir())
    if test and not (folder / "small-validation").is_dir():
        raise incomplete(folder, "small-validation is missing")
    images, classes = class_folders(folder, "small-validation" if test else "small-train", names, allow_empty=test)
    return Split(images, classes, names)
