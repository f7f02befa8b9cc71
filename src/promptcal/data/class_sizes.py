"""Whether classes differ in size, judged by the labels."""

from collections.abc import Sequence

import numpy as np

_MOST_VARIATION = 0.5  # of the sizes around their mean, beyond chance


def are_imbalanced(labels_by_class: Sequence[int] | np.ndarray) -> bool:
    """Whether the numbers of labels vary by more than half of their mean.

    If labels are drawn at random, their number in a class of expected size m varies by chance with the variance m,
    which is subtracted. Labels that were given on purpose to equally many images of each class show nothing.

    >>> are_imbalanced([12, 9, 10, 8]), are_imbalanced([100, 40, 12, 5]), are_imbalanced([3, 1])
    (False, True, False)
    """
    counts = np.asarray(labels_by_class, dtype=float)
    if not counts.size or not counts.sum():
        return False
    mean = counts.mean()
    return bool(counts.var() - mean > (_MOST_VARIATION * mean) ** 2)
