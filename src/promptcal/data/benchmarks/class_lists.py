"""The known classes of the benchmarks, from the published lists in assets/splits."""

import json
from functools import cache
from importlib import resources
from typing import Any


def semantic_shift(dataset: str) -> list[int]:
    """Known classes of the Semantic Shift Benchmark (cub, scars, aircraft), in the data set's own numbers from 0."""
    return sorted(_split(f"{dataset}_osr_splits")["known_classes"])


def herbarium() -> list[int]:
    """Known classes as positions in the folder names of small-train sorted as text."""
    return sorted(_split("herbarium_19_class_splits")["Old"])


def few_of_cifar100(n: int) -> list[int]:
    """Known classes of the few-annotation variants in the published results.

    They are drawn with NumPy's legacy generator, seed 0; only the ten are a separate list.
    """
    if n == 10:
        return sorted([18, 49, 67, 16, 72, 14, 39, 47, 35, 88])
    import numpy as np  # not at the top: listing benchmarks should stay fast

    return sorted(np.random.RandomState(0).choice(100, size=n, replace=False).tolist())


def imagenet100() -> list[tuple[str, str]]:
    """WordNet id and name of the 100 classes, in order; the first 50 are known."""
    split = _split("imagenet100_gcd")
    return list(zip(split["wnids"], split["names"], strict=True))


@cache
def _split(name: str) -> dict[str, Any]:
    file = resources.files("promptcal.data") / "assets" / "splits" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))
