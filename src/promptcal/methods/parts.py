"""Pieces that several methods share."""

import torch
from torch import Tensor
from torch.nn import functional as F


def labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the labelled rows (-1 = unlabelled); 0 where there is none."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="sum")
    return total / (labels >= 0).sum().clamp(min=1)


def mean_entropy(probabilities: Tensor) -> Tensor:
    """H of the mean over the batch: largest, log C, where the categories are used evenly.

    >>> float(mean_entropy(torch.eye(4))) == float(torch.tensor(4.0).log())
    True
    """
    mean = probabilities.mean(dim=0)
    return -(mean * torch.log(mean.clamp(min=1e-12))).sum()  # clamped for the gradient of an unused category
