"""Images as files, for runs that are continued or named."""

from typing import NamedTuple

import pytest

from promptcal.api import fit


class LabelledFolder(NamedTuple):
    images: object
    labels: dict


@pytest.fixture(scope="session")
def apes_and_bees(small_folder, small_set):
    """The small set as 000.png, 001.png, ... with labels for some apes and bees."""
    labels = small_set[2].tolist()
    return LabelledFolder(small_folder, {f"{i:03d}.png": ("ape", "bee")[y] for i, y in enumerate(labels) if y >= 0})


@pytest.fixture(scope="session")
def fit_apes_and_bees(apes_and_bees, whole_size_settings):
    """Fits them without training; takes the output, more settings, and the number of classes."""

    def fit_to(output, *overrides, n_classes=5):
        frozen = ("warmup.epochs=0", "affinity.epochs=0", "tensorboard=false")
        return fit(
            **apes_and_bees._asdict(),
            n_classes=n_classes,
            output=output,
            progress=False,
            overrides=[*whole_size_settings, *frozen, *overrides],
            report=False,
        )

    return fit_to
