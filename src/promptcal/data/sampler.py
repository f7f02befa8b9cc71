"""Batches in which about half of the images are labelled, drawn with replacement."""

import torch
from torch import Tensor


class BalancedSampler:
    """Labelled images have weight 1, unlabelled images n_labelled / n_unlabelled. An epoch is N draws in full batches.

    ``drawn`` is a mask of the images to draw from; by default all.
    An epoch's batches depend only on its seed, so a run can resume at any step.
    """

    def __init__(self, labelled: Tensor, batch_size: int, drawn: Tensor | None = None) -> None:
        drawn = torch.ones_like(labelled) if drawn is None else drawn
        n_labelled, n = int((labelled & drawn).sum()), int(drawn.sum())
        balance = n_labelled / (n - n_labelled) if 0 < n_labelled < n else 1.0
        self.weights = torch.where(labelled, 1.0, balance).masked_fill(~drawn, 0.0).cpu().double()
        self._last = int(drawn.nonzero().max())
        self.batch_size = batch_size
        self.steps_per_epoch = max(1, n // batch_size)

    def epoch(self, seed: int) -> Tensor:
        """Image indices, steps x batch."""
        draws = self.steps_per_epoch * self.batch_size
        cumulative = self.weights.cumsum(dim=0)
        targets = torch.rand(draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        chosen = torch.searchsorted(cumulative, targets * cumulative[-1], right=True)
        return chosen.clamp(max=self._last).view(self.steps_per_epoch, self.batch_size)
