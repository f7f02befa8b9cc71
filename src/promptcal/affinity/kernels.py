"""Passes over N x N affinities that plain PyTorch would make many of, as one Triton kernel each.

Each function also has a plain PyTorch form, which is what it means, and which is used on a CPU or without Triton.
Nothing here waits for the device: counts and ranks stay tensors.
"""

import os
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton for this platform
    triton = None

_BLOCK, _ROUNDS = 2048, 8  # entries a program holds at a time, and how many times


def _use_triton(values: Tensor) -> bool:
    return triton is not None and (values.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")


def _grid(n: int, rounds: int) -> tuple[int]:
    return (triton.cdiv(n, _BLOCK * rounds),)


def split_scaled(matrix: Tensor, rows: Tensor, split: float) -> tuple[Tensor, Tensor]:
    """``rows[:, None] * matrix`` as two half-precision matrices: high + low / split."""
    if not _use_triton(matrix):
        scaled = matrix * rows.unsqueeze(1)
        high = scaled.half()
        return high, ((scaled - high) * split).half()
    high, low = torch.empty_like(matrix, dtype=torch.float16), torch.empty_like(matrix, dtype=torch.float16)
    _split_kernel[_grid(matrix.numel(), 1)](
        matrix, rows, high, low, matrix.numel(), matrix.shape[1], SPLIT=split, BLOCK=_BLOCK
    )
    return high, low


def join_scaled(high: Tensor, low: Tensor, scale: Tensor, split: float) -> Tensor:
    """``scale[:, None] * (high + low / split) * scale[None, :]``; overwrites ``high``."""
    if not _use_triton(high):
        return high.add_(low, alpha=1 / split).mul_(scale.unsqueeze(1)).mul_(scale)
    _join_kernel[_grid(high.numel(), 1)](high, low, scale, high.numel(), high.shape[1], SPLIT=split, BLOCK=_BLOCK)
    return high


def quantile_above_mean(values: Tensor, quantile: float) -> Tensor:
    """The ``quantile`` (linear interpolation) of the entries above the mean of the non-zero ones.

    ``values`` are not negative. Where none lies above that mean, the mean itself.

    >>> quantile_above_mean(torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0, 7.0]), 0.5)  # of 5, 9 and 7
    tensor(7.)
    """
    values = values.flatten()
    if _use_triton(values):
        return _quantile_by_counting(values, quantile)
    return _quantile_by_sorting(values, quantile)


def _quantile_by_sorting(values: Tensor, quantile: float) -> Tensor:
    """By sorting, which on a CPU is only done to the entries above the mean."""
    double = torch.float32 if values.device.type == "mps" else torch.float64
    nonzero = torch.count_nonzero(values).clamp(min=1)
    mean = (values.sum(dtype=double) / nonzero).to(values.dtype)
    if values.device.type == "cpu":
        values = values[values > mean]
    ordered = values.sort().values
    above = len(values) - torch.searchsorted(ordered, mean, right=True)
    position = quantile * (above - 1).clamp(min=0).to(double)
    first = len(values) - above
    low = position.floor().long()
    high = torch.minimum(low + 1, (above - 1).clamp(min=0))
    if len(values) == 0:
        return mean
    ends = ordered.gather(0, (first + torch.stack([low, high])).clamp(max=len(values) - 1))
    between = torch.lerp(ends[0], ends[1], (position - low).to(values.dtype))
    return torch.where(above > 0, between, mean)


def _quantile_by_counting(values: Tensor, quantile: float) -> Tensor:
    """By counting: the wanted entry's 32 bits are found eight at a time, from how many entries share them."""
    n, grid = values.numel(), _grid(values.numel(), _ROUNDS)
    sums = torch.empty(grid, dtype=torch.float64, device=values.device)
    nonzeros = torch.empty(grid, dtype=torch.int64, device=values.device)
    _moments_kernel[grid](values, sums, nonzeros, n, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
    mean = (sums.sum() / nonzeros.sum().clamp(min=1)).to(torch.float32)

    bits = values.view(torch.int32)
    bins = torch.arange(256, device=values.device)
    prefix = torch.zeros((), dtype=torch.int32, device=values.device)
    position = rank = above = low_rank = torch.zeros((), dtype=torch.int64, device=values.device)
    for shift in (24, 16, 8, 0):
        counts = torch.zeros(256, dtype=torch.int32, device=values.device)
        _digits_kernel[grid](bits, mean, prefix, counts, n, SHIFT=shift, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
        if shift == 24:
            above = counts.sum()
            position = quantile * (above - 1).clamp(min=0).double()
            low_rank = rank = position.floor().long()
        running = counts.cumsum(dim=0)
        digit = (running <= rank).sum().clamp(max=255)
        rank = rank - (counts * (bins < digit)).sum()
        prefix = (prefix * 256 + digit).to(torch.int32)
    low = prefix.view(torch.float32)

    following = torch.full((), 2**31 - 1, dtype=torch.int32, device=values.device)
    larger = torch.zeros((), dtype=torch.int32, device=values.device)
    _following_kernel[grid](bits, prefix, following, larger, n, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
    # the next entry upwards is as large where entries equal to the low one are left over
    has_equal = above - larger > low_rank + 1
    high = torch.where(has_equal | (larger == 0), low, following.view(torch.float32))
    between = torch.lerp(low, high, (position - low_rank).float())
    return torch.where(above > 0, between, mean)


if triton is not None:

    @triton.jit
    def _split_kernel(
        matrix: Any, rows: Any, high: Any, low: Any, n: Any, columns: Any, SPLIT: tl.constexpr, BLOCK: tl.constexpr
    ) -> None:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = at < n
        value = tl.load(matrix + at, mask=there) * tl.load(rows + at // columns, mask=there)
        first = value.to(tl.float16)
        tl.store(high + at, first, mask=there)
        tl.store(low + at, ((value - first.to(tl.float32)) * SPLIT).to(tl.float16), mask=there)

    @triton.jit
    def _join_kernel(
        high: Any, low: Any, scale: Any, n: Any, columns: Any, SPLIT: tl.constexpr, BLOCK: tl.constexpr
    ) -> None:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = at < n
        value = tl.load(high + at, mask=there) + tl.load(low + at, mask=there) * (1 / SPLIT)
        value *= tl.load(scale + at // columns, mask=there) * tl.load(scale + at % columns, mask=there)
        tl.store(high + at, value, mask=there)

    @triton.jit
    def _moments_kernel(
        values: Any, sums: Any, nonzeros: Any, n: Any, BLOCK: tl.constexpr, ROUNDS: tl.constexpr
    ) -> None:
        program = tl.program_id(0).to(tl.int64)
        total = tl.zeros([BLOCK], tl.float32)
        count = tl.zeros([BLOCK], tl.int32)
        for i in range(ROUNDS):
            at = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(values + at, mask=at < n, other=0.0)
            total += value
            count += (value != 0).to(tl.int32)
        tl.store(sums + program, tl.sum(total.to(tl.float64)))
        tl.store(nonzeros + program, tl.sum(count).to(tl.int64))

    @triton.jit
    def _digits_kernel(
        bits: Any,
        mean: Any,
        prefix: Any,
        counts: Any,
        n: Any,
        SHIFT: tl.constexpr,
        BLOCK: tl.constexpr,
        ROUNDS: tl.constexpr,
    ) -> None:
        """Of the entries above the mean that begin with the prefix, how many go on with each of 256 digits."""
        program = tl.program_id(0).to(tl.int64)
        floor = tl.load(mean)
        wanted = tl.load(prefix)
        found = tl.zeros([512], tl.int32)
        for i in range(ROUNDS):
            at = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
            entry = tl.load(bits + at, mask=at < n, other=0)
            counted = (entry.to(tl.float32, bitcast=True) > floor) & (at < n)
            if SHIFT < 24:
                counted = counted & ((entry >> (SHIFT + 8)) == wanted)
            digit = tl.where(counted, (entry >> SHIFT) & 255, 256)  # all others to a bin of their own
            found += tl.histogram(digit, 512)
        bins = tl.arange(0, 512)
        tl.atomic_add(counts + bins, found, mask=(bins < 256) & (found > 0))

    @triton.jit
    def _following_kernel(
        bits: Any, low: Any, following: Any, larger: Any, n: Any, BLOCK: tl.constexpr, ROUNDS: tl.constexpr
    ) -> None:
        """The smallest entry above ``low``, and how many there are."""
        program = tl.program_id(0).to(tl.int64)
        bound = tl.load(low)
        smallest = tl.full([BLOCK], 2147483647, tl.int32)
        count = tl.zeros([BLOCK], tl.int32)
        for i in range(ROUNDS):
            at = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
            entry = tl.load(bits + at, mask=at < n, other=0)
            above = entry > bound
            smallest = tl.minimum(smallest, tl.where(above, entry, 2147483647))
            count += above.to(tl.int32)
        tl.atomic_min(following, tl.min(smallest))
        tl.atomic_add(larger, tl.sum(count))
