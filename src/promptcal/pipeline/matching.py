"""Match the classes of a run with the categories of the run that it continues."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment


def class_origins(previous_names: Sequence[str], classes: Sequence[str], shared: np.ndarray) -> dict[int, int]:
    """The previous category of each class, if any: the one with its name, or with most of its labelled images, if no
    other class has more labels in that category (a few of them may be wrong).

    ``shared`` counts labelled images by class and previous category.
    """
    number = {name: i for i, name in enumerate(previous_names)}
    origin = {i: number[name] for i, name in enumerate(classes) if name in number}
    most = (shared == shared.max(axis=1, keepdims=True, initial=0)) & (shared == shared.max(axis=0, initial=0))
    naming = np.where(most, shared, 0)
    return origin | match_free_pairs(naming, origin)


def match_free_pairs(shared: np.ndarray, taken: dict[int, int]) -> dict[int, int]:
    """The one-to-one matching of free rows and columns that share most; each pair shares at least one."""
    shared = shared.copy()
    shared[list(taken)] = 0
    shared[:, list(taken.values())] = 0
    return dict(match_pairs(shared))


def match_pairs(weights: np.ndarray) -> list[tuple[int, int]]:
    """The one-to-one matching of rows and columns with the largest sum; only pairs with a weight above 0."""
    pairs = zip(*linear_sum_assignment(weights, maximize=True), strict=True)
    return [(int(row), int(column)) for row, column in pairs if weights[row, column] > 0]


def kept_numbers(origins: dict[int, int], n_clusters: int) -> np.ndarray:
    """The number of each cluster: that of its previous category, if it has one and the number still exists; the other
    clusters take the numbers that remain, in their order."""
    kept = {i: number for i, number in origins.items() if number < n_clusters}
    free = iter(sorted(set(range(n_clusters)) - set(kept.values())))
    return np.array([kept[i] if i in kept else next(free) for i in range(n_clusters)])
