"""The built-in benchmarks: the seven of the paper, its few-annotation variants, and `mini`, the embedded images."""

from dataclasses import replace
from functools import partial

from promptcal.data.benchmarks import class_lists
from promptcal.data.benchmarks.spec import BenchmarkSpec, Layout

_PACKAGE = "promptcal.data.benchmarks"

CIFAR10 = BenchmarkSpec(
    title="CIFAR-10",
    n_images=50_000,
    n_classes=10,
    known_classes=range(5),
    layouts=(Layout("cifar-10-batches-py", f"{_PACKAGE}.cifar:read_cifar10"),),
    remedy="pass --download, or unpack cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there",
    preset="cifar10",
    download=f"{_PACKAGE}.cifar:download_cifar10",
)
CIFAR100 = BenchmarkSpec(
    title="CIFAR-100",
    n_images=50_000,
    n_classes=100,
    known_classes=range(80),
    layouts=(
        Layout("cifar-100-python", f"{_PACKAGE}.cifar:read_cifar100"),
        Layout("cifar100.npz", f"{_PACKAGE}.cifar:read_cifar100_archive", in_published_order=False),
    ),
    remedy="pass --download, or unpack cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there",
    preset="cifar100",
    download=f"{_PACKAGE}.cifar:download_cifar100",
)
IMAGENET100 = BenchmarkSpec(
    title="ImageNet-100",
    n_images=127_000,
    n_classes=100,
    known_classes=range(50),
    layouts=tuple(
        Layout(path, f"{_PACKAGE}.class_folder_sets:read_imagenet100")
        for path in ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
    ),
    remedy="download ILSVRC 2012 from https://www.image-net.org (an account is needed) and unpack it there, "
    "as imagenet/train and imagenet/val with a folder for each WordNet id",
    preset="imagenet100",
    has_exact_count=False,
)
CUB = BenchmarkSpec(
    title="CUB-200-2011",
    n_images=5_994,
    n_classes=200,
    known_classes=partial(class_lists.semantic_shift, "cub"),
    layouts=(
        Layout("CUB_200_2011", f"{_PACKAGE}.cub:read_cub"),
        Layout("cub_train.tar", f"{_PACKAGE}.cub:read_cub_archive", in_published_order=False, has_test=False),
    ),
    remedy="download CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011 and unpack it there",
    preset="cub",
)
CARS = BenchmarkSpec(
    title="Stanford Cars",
    n_images=8_144,
    n_classes=196,
    known_classes=partial(class_lists.semantic_shift, "scars"),
    layouts=(Layout("stanford_cars", f"{_PACKAGE}.cars:read_cars"),),
    remedy="its home page (https://ai.stanford.edu/~jkrause/cars/car_dataset.html) is offline, so download a copy from "
    "a mirror such as Kaggle and store it there in torchvision's layout: stanford_cars/devkit, cars_train, cars_test "
    "and cars_test_annos_withlabels.mat",
    preset="cars",
)
AIRCRAFT = BenchmarkSpec(
    title="FGVC-Aircraft",
    n_images=6_667,
    n_classes=100,
    known_classes=partial(class_lists.semantic_shift, "aircraft"),
    layouts=(Layout("fgvc-aircraft-2013b", f"{_PACKAGE}.aircraft:read_aircraft"),),
    remedy="pass --download, or unpack fgvc-aircraft-2013b.tar.gz from "
    "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft there",
    preset="aircraft",
    download=f"{_PACKAGE}.aircraft:download_aircraft",
)
HERBARIUM19 = BenchmarkSpec(
    title="Herbarium19",
    n_images=34_000,
    n_classes=683,
    known_classes=class_lists.herbarium,
    layouts=tuple(
        Layout(path, f"{_PACKAGE}.class_folder_sets:read_herbarium")
        for path in ("herbarium_19", "herbarium19", "herbarium-2019-fgvc6")
    ),
    remedy="download small-train and small-validation of the FGVC6 challenge from "
    "https://www.kaggle.com/c/herbarium-2019-fgvc6 and unpack them there below herbarium_19",
    preset="herbarium19",
    has_exact_count=False,
)
MINI = BenchmarkSpec(
    title="the embedded CIFAR-10 images",
    n_images=1_500,
    n_classes=10,
    known_classes=range(5),
    layouts=(Layout("cifar10_mini.npz", f"{_PACKAGE}.dataset_files:read_embedded", embedded=True),),
    remedy="install promptcal again",
    preset="quick",
)


def _cifar100_few(name: str, n_known: int, share: float) -> BenchmarkSpec:
    known = partial(class_lists.few_of_cifar100, n_known)
    return replace(CIFAR100, known_classes=known, labelled_share=share, preset=name)


CIFAR100_C50_L10 = _cifar100_few("cifar100-c50-l10", 50, 0.1)
CIFAR100_C25_L50 = _cifar100_few("cifar100-c25-l50", 25, 0.5)
CIFAR100_C10_L50 = _cifar100_few("cifar100-c10-l50", 10, 0.5)
MINI_C50_L10 = replace(MINI, labelled_share=0.1)
MINI_C30_L50 = replace(MINI, known_classes=range(3))
MINI_C20_L50 = replace(MINI, known_classes=range(2))
