import pytest
import torch

from promptcal.device import COMPILE_FROM_STEPS, choose_compile, choose_dtype, float32_products

CPU, MPS = torch.device("cpu"), torch.device("mps")


@pytest.mark.parametrize("device", [CPU, MPS])
def test_without_a_gpu_made_for_bf16_networks_compute_in_float32_unless_told(device):
    assert choose_dtype("auto", device) == torch.float32
    assert choose_dtype("fp32", device) == torch.float32
    assert choose_dtype("bf16", device) == torch.bfloat16


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_a_gpu_decides_by_its_generation(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_dtype("auto", torch.device("cuda")) == dtype


def test_compiling_is_for_gpus_and_long_runs_unless_told():
    cuda = torch.device("cuda")
    assert not choose_compile("auto", CPU, 10**6)
    assert not choose_compile("auto", cuda, COMPILE_FROM_STEPS - 1)
    assert choose_compile("always", CPU, 1)
    assert not choose_compile("never", cuda, 10**6)


@pytest.mark.skipif(__import__("importlib.util").util.find_spec("triton") is None, reason="Triton is not there")
def test_a_long_run_on_a_gpu_is_compiled():
    assert choose_compile("auto", torch.device("cuda"), COMPILE_FROM_STEPS)


def test_products_are_as_before_afterwards_even_after_an_error():
    torch.set_float32_matmul_precision("medium")
    seen = []

    def fail():
        with float32_products(torch.device("cuda"), torch.bfloat16):
            seen.append(torch.get_float32_matmul_precision())
            with float32_products(CPU, torch.float32):
                seen.append(torch.get_float32_matmul_precision())
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert [*seen, torch.get_float32_matmul_precision()] == ["high", "highest", "medium"]
    finally:
        torch.set_float32_matmul_precision("highest")
