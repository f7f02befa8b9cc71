"""What `--adapt` gains on given features: accuracy of the trained read-out without and with it.

    python benchmarks/adaptation.py demo=demo.npz:5 CUB=cub.npz:100 --seeds 5

Files and trials are those of `benchmarks/class_count.py`: in each trial other classes are known, and half of the rows
of each are labelled. The number of classes is given. Accuracy is that of the rows without a label.
"""

import argparse

import numpy as np
from class_count import labels_of, read

from promptcal import SemiSupervisedDiscovery
from promptcal.metrics import DiscoveryAccuracy, discovery_accuracy


def percent(values: np.ndarray) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def measure(
    features: np.ndarray, labels: np.ndarray, truth: np.ndarray, seed: int, adapt: bool
) -> tuple[np.ndarray, str]:
    """All, Known and New of a trial, and what was used."""
    n_classes, scored = int(truth.max()) + 1, labels < 0
    model = SemiSupervisedDiscovery(n_classes, random_state=seed, adapt=adapt).fit(features, labels)
    found: DiscoveryAccuracy = discovery_accuracy(truth[scored], model.labels_[scored], model.classes_)
    used = "none" if model.adaptation_ is None else model.adaptation_.used
    return np.array([found.all, found.known, found.new]), used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="NAME=FILE.npz:KNOWN")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    rows = []
    for argument in args.files:
        data = read(argument, 1.0)
        gains, without, n_used = [], [], 0
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            labels = labels_of(data, seed)
            plain, _ = measure(data.features.numpy(), labels, data.truth, seed, adapt=False)
            adapted, used = measure(data.features.numpy(), labels, data.truth, seed, adapt=True)
            without.append(plain)
            gains.append(adapted - plain)
            n_used += used == "whitened"
            print(f"{data.name}, {seed}: {percent(plain)} -> {percent(adapted)} ({used})", flush=True)
        change, spread = 100 * np.mean(gains, axis=0), 100 * np.std(gains, axis=0, ddof=1) / len(gains) ** 0.5
        cells = " | ".join(f"{mean:+.1f} ± {2 * error:.1f}" for mean, error in zip(change, spread, strict=True))
        before = percent(np.mean(without, axis=0))
        rows.append(f"| {data.name} | {len(labels)} | {before} | {n_used} of {args.seeds} | {cells} |")
    print(
        "\n| features | rows | without: All / Known / New | whitened | All | Known | New |",
        "|---|---|---|---|---|---|---|",
        *rows,
        sep="\n",
    )


if __name__ == "__main__":
    main()
