"""Memory that is given back."""

import sys
from pathlib import Path

import numpy as np
import pytest

from promptcal.runtime.free_memory import return_freed_memory


def resident_bytes():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of Linux")
def test_freed_blocks_below_one_that_is_in_use_go_back_to_the_system():
    blocks = [np.ones(8192) for _ in range(2000)]  # 131 MB, each too small for a mapping of its own
    kept = blocks[::500]
    del blocks
    before = resident_bytes()
    return_freed_memory()
    assert resident_bytes() < before - 60e6
    assert sum(block.sum() for block in kept) == 4 * 8192


def test_without_such_an_allocator_nothing_happens(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    return_freed_memory()
