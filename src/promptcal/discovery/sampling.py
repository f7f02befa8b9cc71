"""A random part of many rows, and the weight that it gives to rows without a label."""

import numpy as np
import torch
from torch import Tensor


def sample_rows(labels: np.ndarray, most: int, generator: torch.Generator | int) -> Tensor:
    """All rows, or a random part of them in which at most half are labelled, if there are enough others."""
    if len(labels) <= most:
        return torch.arange(len(labels))
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    labelled, unlabelled = (np.flatnonzero(part) for part in (labels >= 0, labels < 0))
    n_labelled = min(len(labelled), max(most // 2, most - len(unlabelled)))
    parts = []
    for rows, n in ((labelled, n_labelled), (unlabelled, most - n_labelled)):
        parts.append(torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)[:n]])
    return torch.cat(parts).sort().values


def weight_in_sample(labels: np.ndarray, chosen: np.ndarray) -> float:
    """How many unlabelled rows one in the sample stands for, if a labelled one stands for itself."""
    return _odds(labels) / _odds(labels[chosen])


def _odds(labels: np.ndarray) -> float:
    """Unlabelled rows for each labelled one; 1 if all or none are labelled."""
    n_labelled = int((labels >= 0).sum())
    return (len(labels) - n_labelled) / n_labelled if 0 < n_labelled < len(labels) else 1.0
