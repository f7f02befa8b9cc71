"""The passes over affinities against NumPy: plain PyTorch, and the Triton kernels in Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from promptcal.methods.promptcal.graph.kernels import (
    Lists,
    count_products,
    join_scaled,
    quantile_above_mean,
    split_scaled,
)

SPLIT = 2048.0


def value_sets():
    generator = torch.Generator().manual_seed(0)
    skewed = torch.rand(1500, generator=generator) ** 4
    with_zeros = torch.where(torch.rand(1500, generator=generator) < 0.5, 0.0, skewed)
    return {
        "skewed": skewed,
        "half zeros": with_zeros,
        "few distinct": (with_zeros * 4).round() / 4,
        "tiny and huge": skewed * 10.0 ** torch.randint(-30, 30, (1500,), generator=generator),
        "all equal": torch.ones(300),
        "all zero": torch.zeros(300),
        "one": torch.tensor([0.25]),
        "several programs": torch.rand(40_000, generator=generator) ** 2,  # 16,384 entries per program
    }


def by_numpy(values, quantile):
    entries = values.numpy()
    total = entries.astype(np.float64).sum()
    mean = np.float32(total / max(1, np.count_nonzero(entries)))
    above = entries[entries > mean]
    return float(np.quantile(above.astype(np.float64), quantile)) if len(above) else float(mean)


@pytest.mark.parametrize("name", value_sets())
@pytest.mark.parametrize("quantile", [0.0, 0.37, 0.5, 0.8, 1.0])
def test_quantile_above_mean_equals_numpy(name, quantile):
    values = value_sets()[name]
    assert float(quantile_above_mean(values, quantile)) == pytest.approx(by_numpy(values, quantile), rel=1e-6)


@pytest.mark.parametrize("quantile", [0.0, 0.37, 1.0])
def test_quantile_of_values_in_half_precision(quantile):
    values = (4096 * value_sets()["several programs"]).half()
    assert float(quantile_above_mean(values, quantile)) == pytest.approx(by_numpy(values.float(), quantile), rel=1e-6)


def test_splitting_and_joining_keep_22_bits():
    generator = torch.Generator().manual_seed(0)
    matrix, scale = (torch.rand(*shape, generator=generator) for shape in ((31, 31), (31,)))
    high, low = split_scaled(matrix * 1000, scale, SPLIT)
    assert high.dtype == low.dtype == torch.float16
    expected = (matrix.double() * 1000) * scale.double().unsqueeze(1)
    torch.testing.assert_close(high.double() + low.double() / SPLIT, expected, rtol=2**-21, atol=1e-9)
    joined = join_scaled(matrix.clone(), matrix.clone(), scale, SPLIT)
    outer = scale.double().unsqueeze(1) * scale.double()
    torch.testing.assert_close(joined.double(), matrix.double() * (1 + 1 / SPLIT) * outer, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float16, 4e-3)])
def test_products_with_consensus_counts_equal_dense_ones(dtype, rtol):
    """Lists of different lengths, one of them empty, and more columns than one program computes."""
    generator = torch.Generator().manual_seed(0)
    members = torch.stack([torch.randperm(29, generator=generator)[:4] for _ in range(30)])  # nobody holds node 29
    a = torch.zeros(30, 30).scatter_(1, members, 1.0)
    x, before, after = (torch.rand(*shape, generator=generator) + 0.5 for shape in ((30, 700), (30,), (30,)))
    x = x.to(dtype)
    order = members.flatten().sort(stable=True)
    starts = torch.searchsorted(order.values, torch.arange(31))
    found = count_products(
        x, Lists(members.flatten(), torch.arange(31) * 4), Lists(order.indices // 4, starts), a.sum(0), before, after
    )
    assert found.dtype == dtype
    scaled = before.double().unsqueeze(1) * x.double()
    expected = after.double().unsqueeze(1) * ((a.T @ a).double() @ scaled - a.sum(0).double().unsqueeze(1) * scaled)
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=rtol * 10)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_kernels_equal_numpy():
    """In a separate process, because Triton reads TRITON_INTERPRET when it is imported."""
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from promptcal.methods.promptcal.graph.kernels import use_triton
from test_kernels import *
assert use_triton(torch.zeros(1))
for values in value_sets().values():
    for quantile in (0.0, 0.37, 1.0):
        found = float(quantile_above_mean(values, quantile))
        assert abs(found - by_numpy(values, quantile)) <= 1e-6 * abs(found), (values, quantile, found)
test_splitting_and_joining_keep_22_bits()
for quantile in (0.0, 0.37, 1.0):
    test_quantile_of_values_in_half_precision(quantile)
for dtype, rtol in ((torch.float32, 1e-5), (torch.float16, 4e-3)):
    test_products_with_consensus_counts_equal_dense_ones(dtype, rtol)
print("equal")
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
