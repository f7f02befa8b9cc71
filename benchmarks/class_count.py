"""How often the truth lies in the interval of the estimated number of classes, and the error of the estimate.

    python benchmarks/class_count.py demo=demo.npz:5 CUB=cub.npz:100 CIFAR-100=cifar100.npz:80
    python benchmarks/class_count.py --imbalance 50 "CIFAR-100, long tail=cifar100.npz:80"

A file has the arrays features (images x dim) and truth (class numbers); the number behind it is that of the known
classes. In each trial other classes are known, drawn at random, and half of the images of each are labelled. The
estimate sees features and labels. With --imbalance F, the sizes of the classes, in a random order that is the same in
all trials, fall exponentially from that of the first to an F-th of it.
"""

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from promptcal.discovery.class_count import ClassCount, count_classes


class Features(NamedTuple):
    name: str
    features: torch.Tensor
    truth: np.ndarray
    n_known: int


def read(argument: str, imbalance: float) -> Features:
    name, _, rest = argument.rpartition("=")
    path, _, n_known = rest.rpartition(":")
    arrays = np.load(path)
    features, truth = torch.from_numpy(arrays["features"]).float(), np.unique(arrays["truth"], return_inverse=True)[1]
    if imbalance > 1:
        kept = long_tail(truth, imbalance)
        features, truth = features[torch.from_numpy(kept)], truth[kept]
    return Features(name or Path(path).stem, F.normalize(features, dim=1), truth, int(n_known))


def long_tail(truth: np.ndarray, imbalance: float) -> np.ndarray:
    """The images of a long-tailed part."""
    generator = np.random.default_rng(0)
    classes = generator.permutation(int(truth.max()) + 1)
    kept = []
    for rank, number in enumerate(classes):
        members = generator.permutation(np.flatnonzero(truth == number))
        kept.append(members[: int(len(members) * imbalance ** (-rank / (len(classes) - 1)))])
    return np.sort(np.concatenate(kept))


def labels_of(data: Features, seed: int) -> np.ndarray:
    """The labels of a trial: of half of the images of random classes."""
    generator = np.random.default_rng(seed)
    labels = np.full(len(data.truth), -1)
    for number in generator.permutation(int(data.truth.max()) + 1)[: data.n_known]:
        members = generator.permutation(np.flatnonzero(data.truth == number))
        labels[members[: max(1, len(members) // 2)]] = number
    return labels


def describe(count: ClassCount) -> str:
    return "; ".join(f"{e.estimator} {e.estimate:.0f} (error {100 * e.error:.0f} %)" for e in count.estimates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="NAME=FILE.npz:KNOWN")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--imbalance", type=float, default=1.0)
    args = parser.parse_args()
    rows = []
    for argument in args.files:
        data = read(argument, args.imbalance)
        n_classes, inside, errors, widths, seconds = int(data.truth.max()) + 1, 0, [], [], []
        for seed in range(args.first_seed, args.first_seed + args.trials):
            labels, began = labels_of(data, seed), time.process_time()
            count = count_classes(data.features, labels, seed=seed, search="calibrated")
            seconds.append(time.process_time() - began)
            assert count.interval is not None
            low, high = count.interval
            inside += low <= n_classes <= high
            errors.append(abs(count.n_classes / n_classes - 1))
            widths.append((high - low) / n_classes)
            print(f"{data.name}, {seed}: {count.n_classes} ({low} to {high}); {describe(count)}", flush=True)
        cells = (f"{inside} of {args.trials}", f"{100 * np.median(errors):.1f} %", f"{100 * max(errors):.1f} %")
        width, cpu = f"{100 * np.median(widths):.0f} %", math.ceil(np.median(seconds))
        rows.append(
            f"| {data.name} | {len(labels)} | {n_classes} | {data.n_known} | {' | '.join(cells)} | {width} | {cpu} |"
        )
    print("\n| features | images | classes | known | in the interval | median error | largest error | width | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
