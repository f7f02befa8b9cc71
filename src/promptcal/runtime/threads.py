"""CPU threads: how many cores there are, one thread for small operations, and how idle threads wait.

The number of threads of a large operation does not depend on the load of the machine, because other sums of the same
numbers would change the last bits of a result, and a resumed run would differ from an uninterrupted one.
"""

import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptcal.errors import PromptCALWarning

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
SMALL = 100_000_000  # multiplications of an operation that takes a few milliseconds on one core
_threads_spin = False  # while they wait; set when promptcal is imported


def available_cores() -> int:
    """The cores that this process may use: its affinity, and at most the quota of its container."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota()))


def _quota() -> int:
    try:
        limit, period = _QUOTA.read_text().split()
        return math.ceil(int(limit) / int(period))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return os.cpu_count() or 1


def let_idle_threads_sleep() -> None:
    """Idle OpenMP threads sleep instead of spinning; this takes effect if PyTorch is not imported yet.

    While one of two threads waits for a core that another program uses, the other one would spin: on a busy machine
    that made k-means 25 to 40 times slower (`benchmarks/threads.py`). It does not change any result.
    """
    global _threads_spin
    _threads_spin = "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # for processes that this one starts in any case


def warn_if_threads_spin() -> None:
    """Say once that idle threads use a core while they wait, because PyTorch was imported before promptcal."""
    global _threads_spin
    import torch

    if _threads_spin and torch.get_num_threads() > 1:
        _threads_spin = False
        warnings.warn(
            "PyTorch was imported before promptcal, so its threads use a core while they wait, which is slow on a busy "
            "machine; import promptcal first, or set OMP_WAIT_POLICY=passive before Python starts",
            PromptCALWarning,
            stacklevel=3,
        )


@contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """Use one thread for operations of few multiplications: they end before other threads have started."""
    import torch

    before = torch.get_num_threads()
    if multiplications >= SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
