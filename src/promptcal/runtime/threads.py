"""CPU threads: how many cores there are, one thread for small operations, and how idle threads wait.

The number of threads of a large operation does not depend on the load of the machine, because other sums of the same
numbers would change the last bits of a result, and a resumed run would differ from an uninterrupted one.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
SMALL = 100_000_000  # multiplications of an operation that takes a few milliseconds on one core


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
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


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
