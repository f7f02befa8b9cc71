import pytest
import torch

from promptcal.runtime import device as device_module
from promptcal.runtime.device import COMPILE_FROM_STEPS, can_run_triton, choose_compile, choose_dtype, device_context

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")
newer_interface = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="asks by the interface that came with torch 2.9"
)


@pytest.fixture
def a_gpu(monkeypatch):
    """``a_gpu(capability)``: a machine that says it has one of that generation, with Triton and a compiler."""

    def pretend(capability, *, triton=True, compiler="/usr/bin/cc"):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(device_module, "find_spec", lambda name: object() if triton else None)
        monkeypatch.setattr(device_module.shutil, "which", lambda name: compiler)
        monkeypatch.delenv("CC", raising=False)
        can_run_triton.cache_clear()

    yield pretend
    can_run_triton.cache_clear()


@pytest.mark.parametrize("device", [CPU, MPS])
def test_without_a_gpu_made_for_bf16_networks_compute_in_float32_unless_told(device):
    assert choose_dtype("auto", device) == torch.float32
    assert choose_dtype("fp32", device) == torch.float32
    assert choose_dtype("bf16", device) == torch.bfloat16


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_a_gpu_decides_by_its_generation(a_gpu, capability, dtype):
    a_gpu(capability)
    assert choose_dtype("auto", CUDA) == dtype


def test_compiling_is_for_gpus_and_long_runs_unless_told(a_gpu):
    a_gpu((9, 0))
    assert choose_compile("auto", CUDA, COMPILE_FROM_STEPS)
    assert not choose_compile("auto", CUDA, COMPILE_FROM_STEPS - 1)
    assert not choose_compile("auto", CPU, 10**6)
    assert choose_compile("always", CPU, 1)
    assert not choose_compile("never", CUDA, 10**6)


@pytest.mark.parametrize("lacking", [{"triton": False}, {"compiler": None}, {"capability": (6, 1)}])
def test_a_gpu_without_what_triton_needs_does_without_it(a_gpu, lacking):
    a_gpu(**{"capability": (8, 0), **lacking})
    assert not can_run_triton(CUDA)
    assert not choose_compile("auto", CUDA, 10**6)


@newer_interface
def test_on_a_cpu_the_callers_settings_are_left_alone():
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # after which the older interface may not even be read
    try:
        with device_context(CPU, torch.bfloat16):
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@newer_interface
@pytest.mark.parametrize(("dtype", "setting"), [(torch.bfloat16, "tf32"), (torch.float32, "ieee")])
def test_products_are_as_before_afterwards_even_after_an_error(monkeypatch, dtype, setting):
    class OnNothing:
        def __init__(self, device):
            assert device == CUDA

        __enter__ = __exit__ = lambda self, *given: None

    monkeypatch.setattr(torch.cuda, "device", OnNothing)
    matmul, seen = torch.backends.cuda.matmul, []
    before = matmul.fp32_precision

    def fail():
        with device_context(CUDA, dtype):
            seen.append(matmul.fp32_precision)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*seen, matmul.fp32_precision] == [setting, before]
