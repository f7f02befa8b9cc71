"""The learning rate of each epoch."""

import math

from promptcal.config.schema import OptimConfig

STEP_FACTOR = 0.1  # by which the rate changes at a milestone


def learning_rate(settings: OptimConfig, epoch: int, epochs: int) -> float:
    """The rate of an epoch (from 0) of a stage of ``epochs`` epochs.

    During the warm-up it rises linearly from ``min_lr`` and reaches ``lr`` in the last warm-up epoch. The cosine then
    covers the remaining epochs. Milestones are counted from the first epoch of the stage.
    """
    highest, lowest, warmup = settings.lr, settings.min_lr, settings.warmup_epochs
    if epoch < warmup:
        return lowest + (highest - lowest) * min(1.0, epoch / max(1, warmup - 1))
    if settings.schedule == "steps":
        return highest * STEP_FACTOR ** sum(epoch >= milestone for milestone in settings.milestones)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2
