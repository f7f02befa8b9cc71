"""Accuracy and time of the read-outs on the embeddings of finished runs: k-means and the trained heads, several seeds.

    python benchmarks/readout.py RUN RUN ...      runs with a truth, such as those of `promptcal benchmark`
    python benchmarks/readout.py FILE.npz ...     arrays features, truth (class numbers, known classes first) and labels
                                                  (the same, -1 where there is none)
    python benchmarks/readout.py RUN --imbalance 50    long tails of its images

A line is the mean over the seeds, and in brackets the difference between the best and the worst seed.

With --imbalance, only a part of the images is used, whose class sizes fall exponentially by this factor, and each seed
draws the classes that are known and the half of their images that is labelled. Cells then have the mean with its 95 %
interval over the seeds, and the paired difference to k-means without labels.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from class_count import long_tail
from torch import Tensor
from torch.nn import functional as F

from promptcal.discovery import SemiSupervisedKMeans
from promptcal.discovery.heads import HEADS, estimated_sizes, train_heads
from promptcal.experiments.intervals import Statistic
from promptcal.methods import load_config
from promptcal.metrics import discovery_accuracy
from promptcal.pipeline.clustering import cluster_prior
from promptcal.run import Run

BASE = "k-means without labels"


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


def draw_tail(data: Embeddings, imbalance: float, seed: int) -> Embeddings:
    """A long-tailed part, with other known classes, and labels for half of their images."""
    chosen, generator = long_tail(data.truth, imbalance), np.random.default_rng([1, seed])
    truth = generator.permutation(int(data.truth.max()) + 1)[data.truth[chosen]]  # the first numbers are known classes
    half = np.zeros(len(truth), dtype=bool)
    for number in range(int(data.labels.max()) + 1):
        members = generator.permutation(np.flatnonzero(truth == number))
        half[members[: max(1, len(members) // 2)]] = True
    return Embeddings(data.features[torch.from_numpy(chosen)], truth, np.where(half, truth, -1))


def read_outs(
    data: Embeddings, starts: int, seed: int, priors: list[str]
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The name of each read-out, and a function that gives the cluster of each image."""
    n_clusters = int(data.truth.max()) + 1
    yield BASE, lambda: SemiSupervisedKMeans(n_clusters, starts, random_state=seed).fit(data.features).labels_
    kmeans = SemiSupervisedKMeans(n_clusters, starts, random_state=seed)
    yield "semi-supervised k-means", lambda: kmeans.fit(data.features, data.labels).labels_
    several = SemiSupervisedKMeans(n_clusters, HEADS, random_state=seed, n_kept=HEADS)
    centroids = torch.from_numpy(several.fit(data.features, data.labels).kept_centers_)
    for name in priors:
        config = load_config(values={"n_classes": n_clusters}, overrides=(f"clustering.prior={name}",))
        prior = cluster_prior(config, estimated_sizes(kmeans.labels_, n_clusters), data.labels)
        yield f"heads, prior {name}", partial(_clusters_of_heads, data, centroids, prior, seed)


def _clusters_of_heads(data: Embeddings, starts: Tensor, prior: Tensor | None, seed: int) -> np.ndarray:
    return train_heads(data.features, data.labels, starts, prior=prior, seed=seed).clusters


def measure(draw: Callable[[int], Embeddings], starts: int, seeds: int, priors: list[str]) -> dict[str, np.ndarray]:
    """All, Known, New and seconds by read-out (seeds x 4)."""
    rows: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        data = draw(seed)
        unlabelled = data.labels < 0
        for name, assign in read_outs(data, starts, seed, priors):
            began = time.perf_counter()
            clusters = assign()
            seconds = time.perf_counter() - began
            found = discovery_accuracy(data.truth[unlabelled], clusters[unlabelled], range(int(data.labels.max()) + 1))
            rows.setdefault(name, []).append([100 * found.all, 100 * found.known, 100 * found.new, seconds])
    return {name: np.array(values) for name, values in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--starts", type=int, default=100, help="of k-means")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--imbalance", type=float, default=0, metavar="FACTOR")
    parser.add_argument("--priors", nargs="+", default=["balanced", "estimated", "none"], help="auto is the default")
    args = parser.parse_args()
    print("| embeddings | read-out | All | Known | New | s |\n|---|---|---|---|---|---|")
    for path in args.runs:
        data = read(path)
        draw = partial(draw_tail, data, args.imbalance) if args.imbalance else lambda seed, data=data: data
        found = measure(draw, args.starts, args.seeds, args.priors)
        base = found[BASE]
        for name, values in found.items():
            cells = [f"{m:.1f} ({r:.1f})" for m, r in zip(values.mean(0), np.ptp(values, axis=0), strict=True)][:3]
            if args.imbalance:
                both = zip(values.T[:3], (values - base).T[:3], strict=True)
                cells = [f"{interval(value)}, difference {interval(difference)}" for value, difference in both]
            print(f"| {path.stem} | {name} | {' | '.join(cells)} | {values[:, 3].mean():.0f} |", flush=True)


def interval(values: np.ndarray) -> str:
    statistic = Statistic.of(values.tolist())
    return f"{statistic.mean:.1f} ± {statistic.ci95:.1f}"


if __name__ == "__main__":
    main()
