"""Choice of device, precision, determinism and compilation."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from promptcal.errors import ConfigError


def widest_float(device: torch.device) -> torch.dtype:
    """The dtype for sums of many numbers; Apple's GPUs do not support float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is CUDA, else MPS, else the CPU."""
    if name == "auto":
        other = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else other)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which fails on the device "meta"
    except Exception as error:  # a backend that is not installed raises any exception
        raise ConfigError(f"the device {name!r} cannot be used here; choose cpu, cuda, mps or auto") from error
    return device


@contextmanager
def explain_memory_errors() -> Iterator[None]:
    """Raise a `ConfigError` that names the settings if memory cannot be allocated."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(r"out of memory|alloc|[Ss]torage size", str(error)):
            raise
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"there is not enough memory{reason and f' ({reason})'}; lower data.batch_size, "
            "model.image_size, the sizes of the heads or the method's other sizes"
        ) from error


_CUBLAS_SETTING = "CUBLAS_WORKSPACE_CONFIG"
_HAS_FP32_PRECISION = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # since PyTorch 2.9
COMPILE_FROM_STEPS = 2000  # compiling takes 28 s on an H200 and saves 7 ms a step of a ViT-S there


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of a network's matrix products; "auto" is bf16 on GPUs and CPUs with fast bf16 products, else fp32."""
    if precision == "auto":
        if device.type == "cuda":
            is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
        else:
            is_fast = device.type == "cpu" and _has_fast_bf16()
        return torch.bfloat16 if is_fast else torch.float32
    if precision == "bf16" and device.type == "cpu":
        _check_bf16_on_cpu()
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


def _has_fast_bf16() -> bool:
    """Whether the CPU has AVX-512 instructions for bf16 products. With AMX it has others, which may not work."""
    can = {name: getattr(torch.cpu, f"_is_{name}_supported", lambda: False) for name in ("avx512_bf16", "amx_tile")}
    return bool(can["avx512_bf16"]()) and not can["amx_tile"]()


_BF16_PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"


@cache
def _check_bf16_on_cpu() -> None:
    """Try a bf16 product in another process: some virtual machines report AMX instructions but do not execute them."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    if subprocess.run([sys.executable, "-c", _BF16_PRODUCT], capture_output=True).returncode < 0:
        raise ConfigError(
            "bf16 does not work on this CPU: its instructions end the process; use --precision fp32, or set the "
            "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )


def choose_compile(setting: str, device: torch.device, steps: int) -> bool:
    """Whether to compile the network; "auto" compiles on CUDA if there are enough steps to save time."""
    if setting == "auto":
        return steps >= COMPILE_FROM_STEPS and can_run_triton(device)
    return setting == "always"


@cache
def _cuda_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """One stream for all fits of the process, because libraries keep memory for each stream that they have seen."""
    return torch.cuda.Stream(device)


class SideStream:
    """Work on a GPU beside the work that is launched after it. On other devices all work runs in its order."""

    def __init__(self, device: torch.device, number: int = 0) -> None:
        self.device = device
        self._stream = _cuda_stream(device, number) if device.type == "cuda" else None

    @contextmanager
    def run(self) -> Iterator[None]:
        """Launch the work in this block beside what follows, after all work so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Let the work that is launched from now on wait for it; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)


@cache
def can_run_triton(device: torch.device) -> bool:
    """Whether Triton can be used: it needs a GPU of compute capability 7 and a C compiler for its launcher."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and torch.cuda.get_device_capability(device) >= (7, 0)


@contextmanager
def device_context(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Make a CUDA device current and set its float32 matrix products: TF32 with a bf16 network, else full precision."""
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


@contextmanager
def deterministic_mode(enabled: bool) -> Iterator[None]:
    """If ``enabled``, use only deterministic algorithms; operations without one raise an error.

    If the process has computed a matrix product on a GPU before, set CUBLAS_WORKSPACE_CONFIG=:4096:8 when it starts.
    """
    if not enabled:
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
