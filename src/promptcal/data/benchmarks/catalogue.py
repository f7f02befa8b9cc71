"""The datasets: their size, their known classes, where they lie below a root, and how to come by them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from promptcal.data.benchmarks import class_lists
from promptcal.data.benchmarks.aircraft import download_aircraft, read_aircraft
from promptcal.data.benchmarks.cars import read_cars
from promptcal.data.benchmarks.cifar import (
    download_cifar10,
    download_cifar100,
    read_cifar10,
    read_cifar100,
    read_cifar100_archive,
)
from promptcal.data.benchmarks.class_folder_sets import read_herbarium, read_imagenet100
from promptcal.data.benchmarks.cub import read_cub, read_cub_archive
from promptcal.data.benchmarks.embedded_sets import read_mini
from promptcal.data.benchmarks.parts import Reader


@dataclass(frozen=True)
class Source:
    """A layout a dataset may have: a folder or file below the root, or of the package itself, and who reads it."""

    place: str
    read: Reader
    in_published_order: bool = True
    has_test: bool = True
    embedded: bool = False

    def is_there(self, root: Path) -> bool:
        return self.embedded or (root / self.place).exists()


@dataclass(frozen=True)
class Dataset:
    """``n_images`` are those trained on; ``exact`` says whether that number is published to the digit.

    ``preset`` is for one whose benchmarks have no preset of their own name.
    """

    title: str
    n_images: int
    n_classes: int
    known: Callable[[], list[int]]
    sources: tuple[Source, ...]
    remedy: str
    exact: bool = True
    download: Callable[[Path], None] | None = None
    preset: str | None = None


CIFAR10 = Dataset(
    "CIFAR-10",
    50_000,
    10,
    lambda: list(range(5)),
    (Source("cifar-10-batches-py", read_cifar10),),
    "pass --download, or unpack cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there",
    download=download_cifar10,
)
CIFAR100 = Dataset(
    "CIFAR-100",
    50_000,
    100,
    lambda: list(range(80)),
    (
        Source("cifar-100-python", read_cifar100),
        Source("cifar100.npz", read_cifar100_archive, in_published_order=False),
    ),
    "pass --download, or unpack cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there",
    download=download_cifar100,
)
IMAGENET100 = Dataset(
    "ImageNet-100",
    127_000,
    100,
    lambda: list(range(50)),
    tuple(Source(place, read_imagenet100) for place in ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")),
    "fetch ILSVRC 2012 from https://www.image-net.org (an account is needed) and unpack it there, "
    "as imagenet/train and imagenet/val with a folder for each WordNet id",
    exact=False,
)
CUB = Dataset(
    "CUB-200-2011",
    5_994,
    200,
    lambda: class_lists.semantic_shift("cub"),
    (
        Source("CUB_200_2011", read_cub),
        Source("cub_train.tar", read_cub_archive, in_published_order=False, has_test=False),
    ),
    "fetch CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011 and unpack it there",
)
CARS = Dataset(
    "Stanford Cars",
    8_144,
    196,
    lambda: class_lists.semantic_shift("scars"),
    (Source("stanford_cars", read_cars),),
    "its home page (https://ai.stanford.edu/~jkrause/cars/car_dataset.html) is gone, so fetch a copy from a mirror "
    "such as Kaggle's and lay it out there as torchvision does: stanford_cars/devkit, cars_train, cars_test and "
    "cars_test_annos_withlabels.mat",
)
AIRCRAFT = Dataset(
    "FGVC-Aircraft",
    6_667,
    100,
    lambda: class_lists.semantic_shift("aircraft"),
    (Source("fgvc-aircraft-2013b", read_aircraft),),
    "pass --download, or unpack fgvc-aircraft-2013b.tar.gz from https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft "
    "there",
    download=download_aircraft,
)
HERBARIUM19 = Dataset(
    "Herbarium19",
    34_000,
    683,
    class_lists.herbarium,
    tuple(Source(place, read_herbarium) for place in ("herbarium_19", "herbarium19", "herbarium-2019-fgvc6")),
    "fetch small-train and small-validation of the FGVC6 challenge from "
    "https://www.kaggle.com/c/herbarium-2019-fgvc6 and unpack them there below herbarium_19",
    exact=False,
)
MINI = Dataset(
    "the embedded CIFAR-10 images",
    1_500,
    10,
    lambda: list(range(5)),
    (Source("cifar10_mini.npz", read_mini, embedded=True),),
    "install promptcal again",
    preset="quick",
)
