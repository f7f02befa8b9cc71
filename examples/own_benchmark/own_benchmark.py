"""A benchmark of four classes in class folders: ROOT/pets/train/CLASS/*.png and ROOT/pets/test/CLASS/*.png."""

from promptcal.data.benchmarks import BenchmarkSpec, Layout

PETS = BenchmarkSpec(
    title="Pets",
    n_images=48,
    n_classes=4,
    known_classes=range(2),
    layouts=(Layout("pets", "own_benchmark:read"),),
    remedy="put the class folders there",
    preset={"optim": {"lr": 0.01, "epochs": 2}, "affinity": {"quantile": 0.8}},
)


def read(folder, test):
    from promptcal.data.benchmarks import Split
    from promptcal.data.benchmarks.dataset_files import class_folders

    names = sorted(entry.name for entry in (folder / "train").iterdir())
    images, classes = class_folders(folder, "test" if test else "train", names, allow_empty=False)
    return Split(images, classes, names)
