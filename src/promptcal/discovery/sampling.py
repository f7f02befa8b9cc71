"""A random part of many rows."""

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
