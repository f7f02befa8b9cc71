"""Which images of the known classes are labelled, by the rule all published numbers share."""

import numpy as np


def label_half(labels: np.ndarray, known_classes: np.ndarray | list[int], share: float = 0.5) -> np.ndarray:
    """Boolean mask of the labelled images: ``share`` of those of known classes, whatever the run's seed.

    Drawn by position with NumPy's legacy generator, seed 0, uniformly over instances.
    """
    candidates = np.flatnonzero(np.isin(labels, known_classes))
    generator = np.random.RandomState(0)  # the same stream as np.random.seed(0), without touching global state
    chosen = generator.choice(len(candidates), replace=False, size=int(share * len(candidates)))
    mask = np.zeros(len(labels), dtype=bool)
    mask[candidates[chosen]] = True
    return mask


def hold_out(labels: np.ndarray, fraction: float, seed: int, allowed: np.ndarray | None = None) -> np.ndarray:
    """Boolean mask of labelled images to keep back for validation: ``fraction`` of each class, rounded.

    At least one of each class that has two or more, never a class's last label; only images of the mask ``allowed``,
    where it is given, and so perhaps fewer.
    """
    mask = np.zeros(len(labels), dtype=bool)
    if fraction <= 0:
        return mask
    generator = np.random.default_rng(seed)
    for label in np.unique(labels[labels >= 0]):
        members = np.flatnonzero(labels == label)
        n = min(max(1, round(fraction * len(members))), len(members) - 1)
        drawn = generator.permutation(members if allowed is None else members[allowed[members]])
        mask[drawn[:n]] = True
    return mask
