"""What the benchmarks share: timing on any device, tables, and how a time grows with a size."""

import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch

H200_TFLOPS = 790.0  # what an H200 reaches on bf16 matrix products; the floors are stated for it


def median_ms(work: Callable[[], object], device: torch.device, *, repeats: int, warm_up: int = 3) -> float:
    """Median time of a call; on CUDA between events on the device, so that the host can run ahead."""
    for _ in range(warm_up):
        work()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            begun = time.perf_counter()
            work()
            times.append(1000 * (time.perf_counter() - begun))
        return statistics.median(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


def median_device_ms(work: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Like `median_ms`, with the host ahead of the device as in a training step, so that launches take no time."""
    if device.type != "cuda":
        return median_ms(work, device, repeats=repeats)
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(40_000_000)  # cycles, about 20 ms in which the host runs ahead
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def once_s(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else math.nan


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Least-squares slope of log time over log size."""
    x, y = [math.log(s) for s in sizes], [math.log(t) for t in times]
    mx, my = statistics.mean(x), statistics.mean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table, ready for results/measurements.md."""
    print(f"\n{title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "|".join("---" for _ in header) + "|")
    for row in rows:
        print("| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row) + " |")


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"1x {torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()}), torch {torch.__version__}"
