"""Which device to compute on, how precisely, how repeatably, and whether compiled."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from promptcal.errors import ConfigError


def widest_float(device: torch.device) -> torch.dtype:
    """The dtype to add many numbers up in; Apple's GPUs know no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is CUDA, else MPS, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"the device {name!r} cannot be used here; choose cpu, cuda, mps or auto") from error
    return device


_HAS_FP32_PRECISION = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # since PyTorch 2.9
COMPILE_FROM_STEPS = 2000  # compiling takes half a minute on an H200 and saves 30 ms a step there


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """What a network's matrix products are done in; "auto" is bf16 on a GPU that multiplies it fast, else fp32."""
    if precision == "auto":
        fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if fast else torch.float32
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


def choose_compile(setting: str, device: torch.device, steps: int) -> bool:
    """Whether to compile the network; "auto" does on CUDA if there are enough steps for it to pay."""
    if setting == "auto":
        return steps >= COMPILE_FROM_STEPS and can_run_triton(device)
    return setting == "always"


def compile_in_place(vit: nn.Module, device: torch.device, *, alone: bool = True) -> None:
    """Compile ``vit`` for batches of the sizes it will meet.

    On a GPU, for a process that trains ``alone`` (not in a group), its kernels are recorded and launched together
    from then on (CUDA graphs): launching the many of a small ViT one by one takes the host longer than they take the
    GPU. What ``vit`` returns is overwritten by a later step.
    """
    recorded = device.type == "cuda" and alone
    vit.compile(dynamic=False, mode="reduce-overhead" if recorded else "default")


@cache
def can_run_triton(device: torch.device) -> bool:
    """Whether Triton's kernels run there: it needs a GPU of compute capability 7 and a C compiler for its launcher."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and torch.cuda.get_device_capability(device) >= (7, 0)


@contextmanager
def device_context(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Make a CUDA device the current one and set its float32 matrix products: TF32 beside a bf16 network, else full."""
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    setting, fast, full = ("fp32_precision", "tf32", "ieee") if _HAS_FP32_PRECISION else ("allow_tf32", True, False)
    before = getattr(matmul, setting)
    setattr(matmul, setting, fast if dtype == torch.bfloat16 else full)
    try:
        with torch.cuda.device(device):
            yield
    finally:
        setattr(matmul, setting, before)


_CUBLAS_SETTING = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic_mode(wanted: bool) -> Iterator[None]:
    """If ``wanted``, only algorithms that give the same result each time; an operation that has none is an error.

    cuBLAS reads its setting when the process first multiplies on a GPU: in a process that has done so before, set the
    environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 before it starts.
    """
    if not wanted:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    before = cudnn.deterministic, cudnn.benchmark, os.environ.get(_CUBLAS_SETTING)
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    os.environ.setdefault(_CUBLAS_SETTING, ":4096:8")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        cudnn.deterministic, cudnn.benchmark, setting = before
        if setting is None:
            os.environ.pop(_CUBLAS_SETTING, None)
