"""Passes over N x N affinities: one Triton kernel each, or plain PyTorch on a CPU or without Triton.

Nothing here synchronises with the device: counts and ranks stay tensors.
"""

import os
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.runtime.device import can_run_triton, widest_float

try:
    import triton

    from promptcal.methods.promptcal.graph import triton_kernels
except ImportError:  # no Triton for this platform
    triton = None

_BLOCK, _ROUNDS = 2048, 8  # entries per block, and blocks per program
_COLUMNS = 512  # of a program of `count_products`


def use_triton(values: Tensor) -> bool:
    return can_run_triton(values.device) or (triton is not None and os.environ.get("TRITON_INTERPRET") == "1")


def _grid(n: int, rounds: int) -> tuple[int]:
    return (triton.cdiv(n, _BLOCK * rounds),)


def split_scaled(matrix: Tensor, rows: Tensor, split: float) -> tuple[Tensor, Tensor]:
    """``rows[:, None] * matrix`` as two half-precision matrices: high + low / split."""
    if not use_triton(matrix):
        scaled = matrix * rows.unsqueeze(1)
        high = scaled.half()
        return high, ((scaled - high) * split).half()
    high, low = torch.empty_like(matrix, dtype=torch.float16), torch.empty_like(matrix, dtype=torch.float16)
    triton_kernels.split[_grid(matrix.numel(), 1)](
        matrix, rows, high, low, matrix.numel(), matrix.shape[1], SPLIT=split, BLOCK=_BLOCK
    )
    return high, low


def join_scaled(high: Tensor, low: Tensor, scale: Tensor, split: float) -> Tensor:
    """``scale[:, None] * (high + low / split) * scale[None, :]``; overwrites ``high``."""
    if not use_triton(high):
        return high.add_(low, alpha=1 / split).mul_(scale.unsqueeze(1)).mul_(scale)
    triton_kernels.join[_grid(high.numel(), 1)](
        high, low, scale, high.numel(), high.shape[1], SPLIT=split, BLOCK=_BLOCK
    )
    return high


class Lists(NamedTuple):
    """A list of rows for each node: list i is ``entries[starts[i] : starts[i + 1]]``."""

    entries: Tensor
    starts: Tensor


def count_products(x: Tensor, members: Lists, holders: Lists, degrees: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """``after * (A^T A - diag(degrees)) (before * x)``, of which the last part is C x for ``before`` = 1.

    Args:
        x: Values (nodes x columns), in float32 or half precision; sums are computed in float32.
        members: The neighbourhood of each node, a row of A.
        holders: The nodes whose neighbourhood contains a node, a column of A.
        degrees: Number of holders of each node.
        before: A factor for each row of ``x``.
        after: A factor for each row of the result.

    Returns:
        The product, in the precision of ``x``.
    """
    if not use_triton(x):
        scaled = x.float() * before.unsqueeze(1)
        sums = scaled
        for lists in (members, holders):
            sums = F.embedding_bag(lists.entries, sums, lists.starts, mode="sum", include_last_offset=True)
        return ((sums - degrees.unsqueeze(1) * scaled) * after.unsqueeze(1)).to(x.dtype)
    n, columns = x.shape
    grid, ones = (n, triton.cdiv(columns, _COLUMNS)), torch.ones_like(degrees)
    by_member, product = torch.empty_like(x), torch.empty_like(x)
    triton_kernels.sum_rows[grid](
        x, *members, before, ones, x, degrees, by_member, columns, SUBTRACTS=False, BLOCK=_COLUMNS
    )
    triton_kernels.sum_rows[grid](
        by_member, *holders, ones, after, x, degrees * before, product, columns, SUBTRACTS=True, BLOCK=_COLUMNS
    )
    return product


def quantile_above_mean(values: Tensor, quantile: float) -> Tensor:
    """The ``quantile`` (linear interpolation) of the entries above the mean of the non-zero entries.

    ``values`` must not be negative. If no entry is above the mean, the result is the mean.

    >>> quantile_above_mean(torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0, 7.0]), 0.5)  # of 5, 9 and 7
    tensor(7.)
    """
    digits = 3 if values.dtype == torch.float16 else 4  # of 8 bits; the last ones of half precision are 0
    values = values.flatten().float()
    if use_triton(values):
        return _radix_select(values, quantile, digits)
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


def _radix_select(values: Tensor, quantile: float, digits: int) -> Tensor:
    """`quantile_above_mean` in a pass for each of the first ``digits`` of 8 bits of the entries; the others are 0."""
    n, grid = values.numel(), _grid(values.numel(), _ROUNDS)
    sums = torch.empty(grid, dtype=torch.float64, device=values.device)
    nonzeros = torch.empty(grid, dtype=torch.int64, device=values.device)
    triton_kernels.moments[grid](values, sums, nonzeros, n, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
    mean = (sums.sum() / nonzeros.sum().clamp(min=1)).to(torch.float32)

    bits = values.view(torch.int32)
    counts = torch.zeros(256, dtype=torch.int32, device=values.device)
    prefix, larger = torch.zeros(2, dtype=torch.int32, device=values.device).unbind()
    following = torch.full((), 2**31 - 1, dtype=torch.int32, device=values.device)
    ranks = torch.zeros(3, dtype=torch.int64, device=values.device)  # remaining rank, low entry's rank, entries above
    result = torch.empty((), dtype=torch.float32, device=values.device)
    for shift in (24, 16, 8, 0)[:digits]:
        triton_kernels.count_digits[grid](bits, mean, prefix, counts, n, SHIFT=shift, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
        triton_kernels.select_digit[(1,)](counts, prefix, ranks, QUANTILE=quantile, FIRST=shift == 24)
    prefix.bitwise_left_shift_(32 - 8 * digits)
    triton_kernels.find_next[grid](bits, prefix, following, larger, n, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
    triton_kernels.interpolate[(1,)](prefix, following, larger, ranks, mean, result, QUANTILE=quantile)
    return result
