"""FGVC-Aircraft in its original layout, which torchvision also uses: data/images and the lists of variants."""

from pathlib import Path

import numpy as np
from torchvision import datasets

from promptcal.data.benchmarks.dataset_files import Split, incomplete, lines, listed_files


def read_aircraft(folder: Path, test: bool) -> Split:
    """trainval or test in the order of its list; class number = position among the sorted variants."""
    names = sorted(lines(folder / "data" / "variants.txt"))
    number = {name: i for i, name in enumerate(names)}
    files, classes = [], []
    for line in lines(folder / "data" / f"images_variant_{'test' if test else 'trainval'}.txt"):
        image, _, variant = line.partition(" ")
        if variant not in number:
            raise incomplete(folder, f"image {image} has the variant {variant!r}, which is not in variants.txt")
        files.append(f"data/images/{image}.jpg")
        classes.append(number[variant])
    return Split(listed_files(folder, files), np.array(classes, dtype=np.int64), names)


def download_aircraft(root: Path) -> None:
    """If the download fails, remove the archive: it has no checksum, and torchvision would accept a truncated one."""
    archive = root / "fgvc-aircraft-2013b.tar.gz"
    existed = archive.exists()
    try:
        datasets.FGVCAircraft(root, download=True)
    except BaseException:
        if not existed:
            archive.unlink(missing_ok=True)
        raise
