"""Small real problems shared by the tests."""

import os
import sys

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the hub's client is imported: no test may use a network

from promptcal import cli
from promptcal.data import embedded_set

# The embedded backbone and images, cut down so that a whole fit takes seconds.
QUICK = (
    "model.backbone=vit_tiny_patch4_32.promptcal",
    "model.head_hidden=32",
    "model.head_bottleneck=16",
    "model.head_prototypes=64",
    "data.batch_size=16",
    "optim.lr=0.01",
    "warmup.epochs=2",
    "affinity.epochs=2",
    "affinity.k=5",
    "affinity.memory=64",
    "affinity.negatives=32",
    "clustering.n_init=5",
    "selection.n_init=3",
)


@pytest.fixture(scope="session")
def quick_settings() -> tuple[str, ...]:
    return QUICK


@pytest.fixture(scope="session")
def small_set() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """48 real images of 4 classes, their classes, and labels for half of classes 0 and 1 (-1 elsewhere)."""
    data = embedded_set("train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:12] for c in range(4)])
    truth = data.labels[chosen]
    labels = np.where((truth < 2) & (np.arange(48) % 2 == 0), truth, -1)
    return data.images[chosen], truth, labels


@pytest.fixture
def promptcal(monkeypatch, capsys):
    """Call the command line; gives exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["promptcal", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return call
