"""The affinity threshold: a quantile of the entries above the mean of the non-zero entries."""

import torch
from torch import Tensor

from promptcal.methods.promptcal.graph import kernels
from promptcal.runtime.device import widest_float


def affinity_threshold(diffused: Tensor, quantile: float, include_diagonal: bool = True) -> Tensor:
    """`quantile_above_mean` of all entries of a square matrix, or of all entries off its diagonal."""
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile must lie in [0, 1], not {quantile}")
    if not include_diagonal:
        diffused = diffused.clone().fill_diagonal_(0.0)  # zeros are ignored
    return quantile_above_mean(diffused, quantile)


def quantile_above_mean(values: Tensor, quantile: float) -> Tensor:
    """The ``quantile`` (linear interpolation) of the entries above the mean of the non-zero entries.

    ``values`` must not be negative. If no entry is above the mean, the result is the mean.

    >>> quantile_above_mean(torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0, 7.0]), 0.5)  # of 5, 9 and 7
    tensor(7.)
    """
    values = values.flatten().float()
    if kernels.use_triton(values):
        return kernels.quantile_above_mean(values, quantile)
    # torch.quantile is limited to 16 million entries
    double = widest_float(values.device)
    nonzero = torch.count_nonzero(values).clamp(min=1)
    mean = (values.sum(dtype=double) / nonzero).to(values.dtype)
    if values.device.type == "cpu":  # fewer entries to sort; other devices would have to wait for their number
        values = values[values > mean]
    if len(values) == 0:
        return mean
    ordered = values.sort().values
    above = len(values) - torch.searchsorted(ordered, mean, right=True)
    first, last = len(values) - above, (above - 1).clamp(min=0)
    position = quantile * last.to(double)
    low = position.floor().long()
    high = torch.minimum(low + 1, last)
    ends = ordered.gather(0, (first + torch.stack([low, high])).clamp(max=len(values) - 1))
    between = torch.lerp(ends[0], ends[1], (position - low).to(values.dtype))
    return torch.where(above > 0, between, mean)
