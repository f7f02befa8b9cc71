"""Which images are in the batches of an epoch."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor


class Sampler(ABC):
    """Full batches of images, at least one an epoch, from those in the mask ``drawn``.

    An epoch's batches depend only on its seed, so a run can resume at any step.
    """

    def __init__(self, drawn: Tensor, batch_size: int) -> None:
        self.images = drawn.nonzero().flatten().cpu()
        self.batch_size = batch_size
        self.steps_per_epoch = max(1, len(self.images) // batch_size)

    def epoch(self, seed: int) -> Tensor:
        """Image indices, steps x batch."""
        draws = self.steps_per_epoch * self.batch_size
        chosen = self._draw(draws, torch.Generator().manual_seed(seed))
        return chosen.view(self.steps_per_epoch, self.batch_size)

    @abstractmethod
    def _draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """The indices of an epoch in order."""


class BalancedSampler(Sampler):
    """Batches in which about half of the images are labelled, drawn with replacement.

    Labelled images have weight 1, unlabelled images n_labelled / n_unlabelled.
    """

    def __init__(self, labelled: Tensor, batch_size: int, drawn: Tensor | None = None) -> None:
        drawn = torch.ones_like(labelled) if drawn is None else drawn
        super().__init__(drawn, batch_size)
        n_labelled, n = int((labelled & drawn).sum()), len(self.images)
        balance = n_labelled / (n - n_labelled) if 0 < n_labelled < n else 1.0
        self.weights = torch.where(labelled, 1.0, balance).masked_fill(~drawn, 0.0).cpu().double()

    def _draw(self, draws: int, generator: torch.Generator) -> Tensor:
        cumulative = self.weights.cumsum(dim=0)
        targets = torch.rand(draws, generator=generator, dtype=torch.float64)
        chosen = torch.searchsorted(cumulative, targets * cumulative[-1], right=True)
        return chosen.clamp(max=int(self.images[-1]))


class NaturalSampler(Sampler):
    """Every image once an epoch in random order, except those of an incomplete last batch.

    If there are fewer images than a batch has, all of them are repeated to fill it.
    """

    def _draw(self, draws: int, generator: torch.Generator) -> Tensor:
        n = len(self.images)
        rounds = [torch.randperm(n, generator=generator) for _ in range(-(-draws // n))]
        return self.images[torch.cat(rounds)[:draws]]


def build_sampler(
    kind: Literal["balanced", "natural"], labelled: Tensor, batch_size: int, drawn: Tensor | None = None
) -> Sampler:
    """The sampler that ``data.sampling`` names; ``drawn`` is a mask of the images to draw from, by default all."""
    if kind == "balanced":
        return BalancedSampler(labelled, batch_size, drawn)
    return NaturalSampler(torch.ones_like(labelled) if drawn is None else drawn, batch_size)
