"""Accuracy and time of the read-outs on the embeddings of finished runs: k-means and the trained heads, several seeds.

    python benchmarks/readout.py RUN RUN ...      runs with a truth, such as those of `promptcal benchmark`
    python benchmarks/readout.py FILE.npz ...     arrays features, truth (class numbers, known classes first) and labels
                                                  (the same, -1 where there is none)

A line is the mean over the seeds, and in brackets the difference between the best and the worst seed.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.discovery import SemiSupervisedKMeans
from promptcal.discovery.heads import HEADS, estimated_sizes, train_heads
from promptcal.metrics import discovery_accuracy
from promptcal.run import Run


class Embeddings(NamedTuple):
    features: Tensor
    truth: np.ndarray
    labels: np.ndarray


def read(path: Path) -> Embeddings:
    if path.is_file():
        arrays = np.load(path)
        features = F.normalize(torch.from_numpy(arrays["features"]).float(), dim=1)
        return Embeddings(features, arrays["truth"], arrays["labels"])
    run = Run(path, "cpu")
    found = run.assignments()
    truth = [name for name in run.truth() or () if name is not None]
    if len(truth) < len(found):
        raise SystemExit(f"{path} has no true class for each image")
    known = [name for name, is_known in zip(run.names, run.known, strict=True) if is_known]
    classes = [*known, *sorted(set(truth) - set(known))]
    numbers = np.array([classes.index(name) for name in truth])
    return Embeddings(torch.from_numpy(run.embeddings()), numbers, np.where(found.labelled, numbers, -1))


def measure(data: Embeddings, starts: int, seeds: int) -> dict[str, np.ndarray]:
    """All, Known, New and seconds by read-out (seeds x 4)."""
    n_clusters, unlabelled = int(data.truth.max()) + 1, data.labels < 0
    known = range(int(data.labels.max()) + 1)
    rows: dict[str, list[list[float]]] = {}

    def add(name: str, clusters: np.ndarray, began: float) -> None:
        seconds = time.perf_counter() - began
        found = discovery_accuracy(data.truth[unlabelled], clusters[unlabelled], known)
        rows.setdefault(name, []).append([100 * found.all, 100 * found.known, 100 * found.new, seconds])

    for seed in range(seeds):
        began = time.perf_counter()
        plain = SemiSupervisedKMeans(n_clusters, starts, random_state=seed).fit(data.features)
        add("k-means without labels", plain.labels_, began)
        began = time.perf_counter()
        kmeans = SemiSupervisedKMeans(n_clusters, starts, random_state=seed).fit(data.features, data.labels)
        add("semi-supervised k-means", kmeans.labels_, began)
        several = SemiSupervisedKMeans(n_clusters, HEADS, random_state=seed, n_kept=HEADS)
        centroids = torch.from_numpy(several.fit(data.features, data.labels).kept_centers_)
        for name, prior in (
            ("heads, equal sizes", torch.full((n_clusters,), 1 / n_clusters)),
            ("heads, estimated sizes", estimated_sizes(kmeans.labels_, n_clusters)),
            ("heads, free sizes", None),
        ):
            began = time.perf_counter()
            add(name, train_heads(data.features, data.labels, centroids, prior=prior, seed=seed).clusters, began)
    return {name: np.array(values) for name, values in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--starts", type=int, default=100, help="of k-means")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("| embeddings | read-out | All | Known | New | s |\n|---|---|---|---|---|---|")
    for path in args.runs:
        for name, values in measure(read(path), args.starts, args.seeds).items():
            cells = [f"{m:.1f} ({r:.1f})" for m, r in zip(values.mean(0), np.ptp(values, axis=0), strict=True)][:3]
            print(f"| {path.stem} | {name} | {' | '.join(cells)} | {values[:, 3].mean():.0f} |", flush=True)


if __name__ == "__main__":
    main()
