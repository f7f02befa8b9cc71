"""Time of SemiAG with negative sampling for both tokens, and the error of its threshold.

    python benchmarks/affinity.py           N = 4352 (memory 4096) and N = 20256 (memory 20000)
    python benchmarks/affinity.py --grow    time and memory by N, K and the number of classes

Measured with the host ahead of the device, as in a training step; "host-bound": only these calls, one after the other.
The definition, `dense_affinity_graph` in float32, is timed in the same run.
"""

import argparse
from collections.abc import Callable

import torch
from measuring import H200_TFLOPS, machine, median_device_ms, median_ms, peak_gb, reset_peak, show, slope
from torch import Tensor
from torch.nn import functional as F

from promptcal.methods.promptcal.graph.affinity_graph import GraphSettings, affinity_graph, dense_affinity_graph
from promptcal.methods.promptcal.graph.pairs import sample_negatives
from promptcal.runtime.device import choose_device, device_context

QUERIES, DIM = 256, 768


def embeddings(n: int, classes: int, spread: float, device: torch.device) -> Tensor:
    """Unit vectors around class centroids; a large spread makes neighbourhoods as mixed as real ones."""
    generator = torch.Generator(device).manual_seed(n + classes)
    centres = torch.randn(classes, DIM, generator=generator, device=device)
    chosen = torch.randint(classes, (n,), generator=generator, device=device)
    return F.normalize(centres[chosen] + spread * torch.randn(n, DIM, generator=generator, device=device), dim=1)


def both_tokens(nodes: Tensor, k: int, quantile: float, negatives: int) -> Callable[[], None]:
    generator = torch.Generator(nodes.device).manual_seed(0)

    def compute() -> None:
        for _ in range(2):
            graph = affinity_graph(nodes[:QUERIES], nodes[QUERIES:], GraphSettings(k, quantile))
            sample_negatives(graph.positives[:, QUERIES:], negatives, generator=generator)

    return compute


def floor_ms(n: int) -> float:
    """Arithmetic of both tokens: cosines, and up to 8,192 nodes three half-precision products of N x N matrices."""
    products = 3 * 2 * n**3 if n <= 8192 else 0
    return 1000 * 2 * (2 * n**2 * DIM + products) / (H200_TFLOPS * 1e12)


def claims(device: torch.device, repeats: int) -> None:
    rows = []
    for memory, k, quantile, negatives in ((4096, 10, 0.5, 1024), (20000, 7, 0.8, 5000)):
        for kind, classes, spread in (("100 classes", 100, 2.0), ("random", 1, 1e6)):
            n = memory + QUERIES
            nodes = embeddings(n, classes, spread, device)
            reset_peak(device)
            compute = both_tokens(nodes, k, quantile, negatives)
            alone = median_ms(compute, device, repeats=repeats)
            elapsed = median_device_ms(compute, device, repeats=repeats)
            peak = peak_gb(device)
            graph = affinity_graph(nodes[:QUERIES], nodes[QUERIES:], GraphSettings(k, quantile))
            with device_context(device, torch.float32):
                dense = lambda nodes=nodes, k=k, q=quantile: dense_affinity_graph(nodes, QUERIES, GraphSettings(k, q))  # noqa: E731
                exact = dense()
                literal = 2 * median_ms(dense, device, repeats=3, warm_up=1)
            error = abs(float(graph.threshold / exact.threshold) - 1)
            agree = float((graph.positives == exact.positives).float().mean())
            threshold = "exact" if graph.exact else "sampled rows"
            floor = floor_ms(n)
            row = (n, k, kind, threshold, floor, elapsed, elapsed / floor, alone, literal, literal / elapsed)
            rows.append((*row, f"{error:.1e}", f"{agree:.6f}", peak))
    header = "N, K, data, threshold, floor ms, measured ms, x floor, host-bound ms, dense fp32 ms, times faster"
    columns = (*header.split(", "), "threshold error", "equal decisions", "peak GB")
    show(f"SemiAG with negative sampling, both tokens, {machine(device)}", columns, rows)


def grow(device: torch.device, repeats: int) -> None:
    rows = []
    sweeps = {
        "N, exact": [(n, 10, 100) for n in (1280, 2304, 4352, 8192)],
        "N, sampled rows": [(n, 7, 100) for n in (10256, 20256, 40256)],
        "K": [(4352, k, 100) for k in (5, 10, 20)],
        "classes": [(4352, 10, c) for c in (10, 100, 1000)],
    }
    for name, sizes in sweeps.items():
        times, peaks = [], []
        for n, k, classes in sizes:
            nodes = embeddings(n, classes, 2.0, device)
            reset_peak(device)
            times.append(median_device_ms(both_tokens(nodes, k, 0.5, 1024), device, repeats=repeats))
            peaks.append(peak_gb(device))
        varied = next(list(column) for column in zip(*sizes, strict=True) if len(set(column)) > 1)
        shown = ([round(t, 2) for t in times], slope(varied, times), [round(p, 2) for p in peaks], slope(varied, peaks))
        rows.append((name, varied, *shown))
    header = ("size", "values", "ms", "slope of time", "peak GB", "slope of memory")
    show(f"SemiAG by size, both tokens, {machine(device)}", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--grow", action="store_true")
    given = parser.parse_args()
    device = choose_device(given.device)
    with device_context(device, torch.bfloat16):
        (grow if given.grow else claims)(device, given.repeats)


if __name__ == "__main__":
    main()
