"""Passes over N x N affinities as single Triton kernels, where plain PyTorch would need many passes.

`split_scaled` and `join_scaled` fall back to plain PyTorch on a CPU or without Triton. Nothing here synchronises with
the device: counts and ranks stay tensors.
"""

import os

import torch
from torch import Tensor

from promptcal.runtime.device import can_run_triton

try:
    import triton

    from promptcal.methods.promptcal.graph import triton_kernels
except ImportError:  # no Triton for this platform
    triton = None

_BLOCK, _ROUNDS = 2048, 8  # entries per block, and blocks per program


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


def quantile_above_mean(values: Tensor, quantile: float) -> Tensor:
    """`threshold.quantile_above_mean` by radix selection: four passes, each of which counts 8 bits of the entries."""
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
    for shift in (24, 16, 8, 0):
        triton_kernels.count_digits[grid](bits, mean, prefix, counts, n, SHIFT=shift, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
        triton_kernels.select_digit[(1,)](counts, prefix, ranks, QUANTILE=quantile, FIRST=shift == 24)
    triton_kernels.find_next[grid](bits, prefix, following, larger, n, BLOCK=_BLOCK, ROUNDS=_ROUNDS)
    triton_kernels.interpolate[(1,)](prefix, following, larger, ranks, mean, result, QUANTILE=quantile)
    return result
