"""The tables' mini scale with fewer of the embedded images, so that a run takes about a second."""

import dataclasses
import json

import numpy as np
import pytest

from promptcal.data import embedded_set
from promptcal.data.benchmarks import BENCHMARKS, Layout, Split
from promptcal.data.images import ImageSet

A_CLASS = 8  # images of each class
SMALL = (
    "model.image_size=8",
    "model.head_hidden=32",
    "model.head_bottleneck=16",
    "model.head_prototypes=64",
    "data.batch_size=16",
    "optim.lr=0.01",
    "optim.epochs=1",
    "warmup.epochs=1",
    "affinity.epochs=1",
    "affinity.memory=64",
    "affinity.negatives=32",
    "clustering.n_init=2",
    "clustering.max_iter=20",
    "tensorboard=false",
)


def read_few(place, test):
    data = embedded_set("test" if test else "train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:A_CLASS] for c in range(10)])
    return Split(ImageSet.of(data.images[chosen]), data.labels[chosen], data.classes)


@pytest.fixture
def few_images(monkeypatch):
    """The benchmarks called mini have so few images that a whole fit takes about a second."""
    layout = Layout("cifar10_mini.npz", read_few, embedded=True)
    for name in BENCHMARKS.names():
        if name.startswith("mini"):
            few = dataclasses.replace(BENCHMARKS[name], n_images=10 * A_CLASS, layouts=(layout,))
            monkeypatch.setitem(BENCHMARKS._registered, name, few)


@pytest.fixture(scope="session")
def small_settings():
    return SMALL


@pytest.fixture(scope="session")
def settings_arguments():
    return ["--kmeans-repeats", "2", *(argument for setting in SMALL for argument in ("--set", setting))]


@pytest.fixture(scope="session")
def shared_output(tmp_path_factory):
    """One folder of runs for all tables, as people have it."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="session")
def results_of():
    def read(output, run):
        return json.loads((output / run / "results.json").read_text())

    return read
