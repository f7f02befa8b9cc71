"""Which device, precision and compilation are chosen, and that global settings are restored."""

import pytest
import torch

from promptcal.errors import ConfigError
from promptcal.runtime import device as device_module
from promptcal.runtime.device import COMPILE_FROM_STEPS, can_run_triton, choose_compile, choose_dtype, device_context

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")
newer_interface = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9"
)


@pytest.fixture
def fake_gpu(monkeypatch):
    """``fake_gpu(capability)``: pretend that there is such a GPU, with Triton and a compiler."""

    def pretend(capability, *, triton=True, compiler="/usr/bin/cc"):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(device_module, "find_spec", lambda name: object() if triton else None)
        monkeypatch.setattr(device_module.shutil, "which", lambda name: compiler)
        monkeypatch.delenv("CC", raising=False)
        can_run_triton.cache_clear()

    yield pretend
    can_run_triton.cache_clear()


def test_on_other_devices_auto_is_float32():
    assert choose_dtype("auto", MPS) == torch.float32
    assert choose_dtype("bf16", MPS) == torch.bfloat16


def test_auto_is_bf16_on_cpus_with_fast_bf16(monkeypatch):
    for bf16, amx, dtype in ((True, False, torch.bfloat16), (False, False, torch.float32), (True, True, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=bf16: answer)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda answer=amx: answer)
        assert choose_dtype("auto", CPU) == dtype
        assert choose_dtype("fp32", CPU) == torch.float32


def test_bf16_that_ends_the_process_on_a_cpu_is_an_error_before_it_is_used(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(device_module, "_BF16_PRODUCT", "import os; os.kill(os.getpid(), 4)")
    device_module._check_bf16_on_cpu.cache_clear()
    with pytest.raises(ConfigError, match="bf16 does not work on this CPU.*--precision fp32"):
        choose_dtype("bf16", CPU)
    monkeypatch.setattr(device_module, "_BF16_PRODUCT", "")
    assert choose_dtype("bf16", CPU) == torch.bfloat16


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_auto_depends_on_the_compute_capability(fake_gpu, capability, dtype):
    fake_gpu(capability)
    assert choose_dtype("auto", CUDA) == dtype


def test_auto_compiles_long_runs_on_gpus_only(fake_gpu):
    fake_gpu((9, 0))
    assert choose_compile("auto", CUDA, COMPILE_FROM_STEPS)
    assert not choose_compile("auto", CUDA, COMPILE_FROM_STEPS - 1)
    assert not choose_compile("auto", CPU, 10**6)
    assert choose_compile("always", CPU, 1)
    assert not choose_compile("never", CUDA, 10**6)


@pytest.mark.parametrize("lacking", [{"triton": False}, {"compiler": None}, {"capability": (6, 1)}])
def test_triton_needs_its_package_a_compiler_and_a_recent_gpu(fake_gpu, lacking):
    fake_gpu(**{"capability": (8, 0), **lacking})
    assert not can_run_triton(CUDA)
    assert not choose_compile("auto", CUDA, 10**6)


@newer_interface
def test_on_a_cpu_the_global_settings_do_not_change():
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # reading the older interface is an error after this
    try:
        with device_context(CPU, torch.bfloat16):
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@newer_interface
@pytest.mark.parametrize(("dtype", "setting"), [(torch.bfloat16, "tf32"), (torch.float32, "ieee")])
def test_the_precision_of_products_is_restored_after_an_error(monkeypatch, dtype, setting):
    class NoDevice:
        def __init__(self, device):
            assert device == CUDA

        __enter__ = __exit__ = lambda self, *arguments: None

    monkeypatch.setattr(torch.cuda, "device", NoDevice)
    matmul, seen = torch.backends.cuda.matmul, []
    before = matmul.fp32_precision

    def fail():
        with device_context(CUDA, dtype):
            seen.append(matmul.fp32_precision)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*seen, matmul.fp32_precision] == [setting, before]
