"""FGVC-Aircraft in its own layout (and torchvision's): data/images and the lists of variants."""

from pathlib import Path

import numpy as np
from torchvision import datasets

from promptcal.data.benchmarks.parts import Part, incomplete, lines, listed_files


def read_aircraft(folder: Path, test: bool) -> Part:
    """trainval or test in the order of its list; class number = position among the sorted variants."""
    names = sorted(lines(folder / "data" / "variants.txt"))
    number = {name: i for i, name in enumerate(names)}
    files, classes = [], []
    for line in lines(folder / "data" / f"images_variant_{'test' if test else 'trainval'}.txt"):
        image, _, variant = line.partition(" ")
        if variant not in number:
            raise incomplete(folder, f"image {image} is of the variant {variant!r}, which variants.txt does not name")
        files.append(f"data/images/{image}.jpg")
        classes.append(number[variant])
    return Part(listed_files(folder, files), np.array(classes, dtype=np.int64), names)


def download_aircraft(root: Path) -> None:
    """Its archive has no checksum, so torchvision would take one that was cut short for whole the next time."""
    archive = root / "fgvc-aircraft-2013b.tar.gz"
    was_there = archive.exists()
    try:
        datasets.FGVCAircraft(root, download=True)
    except BaseException:
        if not was_there:
            archive.unlink(missing_ok=True)
        raise
