"""Images as files, for runs that are continued or named."""

from typing import NamedTuple

import pytest
from PIL import Image


class LabelledFolder(NamedTuple):
    images: object
    labels: dict


@pytest.fixture(scope="session")
def apes_and_bees(tmp_path_factory, small_set):
    """The small set as 000.png, 001.png, ... with labels for some apes and bees."""
    folder = tmp_path_factory.mktemp("apes-and-bees")
    images, _, labels = small_set
    names = [f"{i:03d}.png" for i in range(len(images))]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / name)
    return LabelledFolder(folder, {n: ("ape", "bee")[y] for n, y in zip(names, labels.tolist(), strict=True) if y >= 0})
