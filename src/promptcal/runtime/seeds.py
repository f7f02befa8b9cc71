"""Seeds derived from the run's seed and the purpose, so that a run can be resumed at any step."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed, for example for the purpose ("affinity", "views", epoch, step)."""
    words = [zlib.crc32(p.encode()) if isinstance(p, str) else p for p in purpose]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch; restore their states on exit."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
