"""Memory that is free, memory that is given back, and sizes that are compared with it before anything is allocated.

The system grants more memory than it has. A process that then uses it is killed without a message.
"""

import contextlib
import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from promptcal.errors import ConfigError

if TYPE_CHECKING:
    import torch


def free_host_memory() -> float:
    """Free bytes of memory, within the container's limit; infinite if the system does not report them."""
    free = float("inf")
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024.0 * int(fields["MemAvailable"].split()[0])
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(free, float(int(limit) - int(used)))
    except (OSError, ValueError, KeyError):  # not Linux, or no limit
        return free


def return_freed_memory() -> None:
    """Give memory that is not used any more back to the system, between two large steps.

    The allocator of Linux keeps freed blocks of up to 32 MB: at the end of `cluster`, as much as the features had.
    PyArrow has an allocator of its own.
    """
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None:
        pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no Linux
        ctypes.CDLL(None).malloc_trim(0)


def check_sizes(needs: Mapping[str, float], device: "torch.device") -> None:
    """Reject settings that need more memory than there is; ``needs`` are bytes at least, by the settings to lower."""
    import torch

    free = float(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else free_host_memory()
    for settings, size in needs.items():
        if size > free:
            gigabytes = f"at least {size / 2**30:,.0f} GB of memory, but there are {free / 2**30:,.0f} GB"
            raise ConfigError(f"{settings}: this size needs {gigabytes}; lower it")
