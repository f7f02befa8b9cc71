"""Which images are labelled (the rule of all published results), and which labels are held out for validation."""

import numpy as np


def label_half(labels: np.ndarray, known_classes: np.ndarray | list[int], share: float = 0.5) -> np.ndarray:
    """Boolean mask of the labelled images: ``share`` of the images of known classes, independent of the run's seed.

    Drawn by position with NumPy's legacy generator, seed 0, uniformly over images.
    """
    candidates = np.flatnonzero(np.isin(labels, known_classes))
    generator = np.random.RandomState(0)  # the same stream as np.random.seed(0), without changing global state
    chosen = generator.choice(len(candidates), replace=False, size=int(share * len(candidates)))
    mask = np.zeros(len(labels), dtype=bool)
    mask[candidates[chosen]] = True
    return mask


def hold_out(labels: np.ndarray, fraction: float, seed: int, allowed: np.ndarray | None = None) -> np.ndarray:
    """Boolean mask of labelled images held out for validation: ``fraction`` of each class, rounded.

    At least one image of each class with two or more labels, never a class's last label. With a mask ``allowed``, only
    images in it are held out, which may be fewer.
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
