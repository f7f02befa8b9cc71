"""Time of semi-supervised k-means, 100 starts; on a CPU against scikit-learn's KMeans from the same starts.

    python benchmarks/kmeans.py             on a GPU: 6,000 x 768 into 200 clusters and 127,000 x 768 into 100
    python benchmarks/kmeans.py --device cpu    6,000 x 384 into 200 clusters, with scikit-learn on as many threads
    python benchmarks/kmeans.py --grow      time by points and clusters

The classes overlap, so that Lloyd's iterations take as long as on real embeddings.
"""

import argparse
from functools import partial

import numpy as np
import torch
from measuring import machine, once_s, peak_gb, reset_peak, show, slope
from torch import Tensor
from torch.nn import functional as F

from promptcal.discovery import SemiSupervisedKMeans, kmeans_plus_plus, lloyd
from promptcal.runtime.device import choose_device

FP32_TFLOPS = 60.0  # what an H200 reaches on float32 matrix products


def points_of(n: int, dim: int, classes: int, device: torch.device) -> tuple[Tensor, np.ndarray]:
    """Unit vectors of overlapping classes, and labels for half of the points of the first half of the classes."""
    generator = torch.Generator().manual_seed(n + dim + classes)
    centres = torch.randn(classes, dim, generator=generator)
    truth = torch.randint(classes, (n,), generator=generator)
    points = F.normalize(centres[truth] + 3.0 * torch.randn(n, dim, generator=generator), dim=1)
    labelled = (truth < classes // 2) & (torch.rand(n, generator=generator) < 0.5)
    return points.to(device), torch.where(labelled, truth, -1).numpy()


def warm_up(device: torch.device) -> None:
    points, labels = points_of(8000, 768, 100, device)
    SemiSupervisedKMeans(100, n_init=5, random_state=0).fit(points, labels)


def floor_s(n: int, dim: int, clusters: int, starts: int, iterations: int) -> float:
    """Two matrix products an iteration and start: distances, and sums of clusters."""
    return 2 * 2 * n * dim * clusters * starts * iterations / (FP32_TFLOPS * 1e12)


def on_gpu(device: torch.device) -> None:
    rows = []
    warm_up(device)
    for n, clusters in ((6_000, 200), (127_000, 100)):
        points, labels = points_of(n, 768, clusters, device)
        reset_peak(device)
        kmeans = SemiSupervisedKMeans(clusters, n_init=100, random_state=0)
        elapsed = once_s(partial(kmeans.fit, points, labels), device)
        floor = floor_s(n, 768, clusters, 100, kmeans.n_iter_)
        rows.append((n, 768, clusters, 100, kmeans.n_iter_, floor, elapsed, elapsed / floor, peak_gb(device)))
    header = ["points", "dim", "clusters", "starts", "iterations", "floor s", "measured s", "x floor", "peak GB"]
    show(f"Semi-supervised k-means, {machine(device)}", header, rows)


def on_cpu(starts: int, iterations: int) -> None:
    """Plain k-means (scikit-learn knows no labels): same starting centres, same number of iterations."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    n, dim, clusters = 6_000, 384, 200
    points, _ = points_of(n, dim, clusters, torch.device("cpu"))
    centres = kmeans_plus_plus(points, points[:0], clusters, starts, torch.Generator().manual_seed(0))
    free = torch.full((n,), -1)
    array = points.numpy()

    def theirs() -> list[float]:
        found = []
        for start in centres.numpy():
            kmeans = KMeans(clusters, init=start, n_init=1, max_iter=iterations, tol=0.0, algorithm="lloyd")
            found.append(float(kmeans.fit(array).inertia_))
        return found

    def ours() -> list[float]:
        found = [lloyd(points, start.unsqueeze(0), free, max_iter=iterations, tol=0.0)[2] for start in centres]
        return torch.cat(found).tolist()

    threads = torch.get_num_threads()
    with threadpool_limits(threads):
        worst = max(abs(a / b - 1) for a, b in zip(ours(), theirs(), strict=True))
        mine, others = [], []
        for _ in range(3):  # by turns, so that neither has the machine to itself
            others.append(once_s(theirs, torch.device("cpu")))
            mine.append(once_s(ours, torch.device("cpu")))
    row = (n, dim, clusters, starts, iterations, min(others), min(mine), min(others) / min(mine), f"{worst:.1e}")
    header = "points, dim, clusters, starts, iterations, scikit-learn s, measured s, times faster, inertia difference"
    show(f"k-means, {machine(torch.device('cpu'))}", header.split(", "), [row])


def grow(device: torch.device) -> None:
    warm_up(device)
    sweeps = {"points": [(n, 100) for n in (8_000, 32_000, 128_000)], "clusters": [(64_000, c) for c in (50, 200, 800)]}
    rows = []
    for name, sizes in sweeps.items():
        times, peaks = [], []
        for n, clusters in sizes:
            points, labels = points_of(n, 768, clusters, device)
            reset_peak(device)
            kmeans = SemiSupervisedKMeans(clusters, n_init=20, max_iter=20, tol=0.0, random_state=0)
            times.append(once_s(partial(kmeans.fit, points, labels), device))
            peaks.append(peak_gb(device))
        varied = [size[0] if name == "points" else size[1] for size in sizes]
        rows.append((name, varied, [round(t, 3) for t in times], slope(varied, times), [round(p, 1) for p in peaks]))
    header = ("size", "values", "s (20 starts, 20 iterations)", "log-log slope", "peak GB")
    show(f"k-means by size, {machine(device)}", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--starts", type=int, default=5, help="on a CPU")
    parser.add_argument("--iterations", type=int, default=20, help="on a CPU")
    parser.add_argument("--grow", action="store_true")
    given = parser.parse_args()
    device = choose_device(given.device)
    if given.grow:
        grow(device)
    elif device.type == "cpu":
        on_cpu(given.starts, given.iterations)
    else:
        on_gpu(device)


if __name__ == "__main__":
    main()
