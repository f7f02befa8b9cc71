"""Which device to compute on, how precisely, and whether compiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

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
        return device.type == "cuda" and steps >= COMPILE_FROM_STEPS and find_spec("triton") is not None
    return setting == "always"


@contextmanager
def float32_products(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Beside bf16 networks let a GPU do float32 matrix products in TF32; beside float32 ones in full."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" and dtype == torch.bfloat16 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
