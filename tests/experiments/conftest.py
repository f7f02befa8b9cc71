"""Settings with which a run of a table's mini scale takes about a second, and its results."""

import json

import pytest

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
