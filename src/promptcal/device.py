"""Which device to compute on."""

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
