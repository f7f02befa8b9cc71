"""Accuracy over rounds of labelling by a simulated user: `fit --from` with a label file after each round.

    python benchmarks/labelling.py                          the demo's images with the frozen embedded backbone
    python benchmarks/labelling.py --wrong-labels 0.05      5 % of the labels are wrong
    python benchmarks/labelling.py --images FOLDER          a folder with a sub-folder for each class
    python benchmarks/labelling.py --set affinity.epochs=1  with training

Each line is one round: the accuracy before and after it on the images that no label file has listed so far, by the best
matching of categories and classes, the gain by the names of the categories, and the accuracy on images that the user
never labels. With training, the last column says which result the fit kept.
"""

import argparse
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from simulated_user import LabelFile, Round, SimulatedUser, label_in_rounds

from promptcal import Run, fit
from promptcal.data import ImageSet, embedded_set

FROZEN = ("warmup.epochs=0", "affinity.epochs=0", "model.prompts=0", "model.supervised_prompts=0", "tensorboard=false")


def demo_images(per_class: int) -> tuple[np.ndarray, dict[str, str]]:
    """The first images of each class of the embedded set, and the class of each."""
    data = embedded_set("train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:per_class] for c in range(len(data.classes))])
    images = data.images[chosen]
    names = [data.classes[c] for c in data.labels[chosen]]
    return images, dict(zip(ImageSet.of(images).names, names, strict=True))


def folder_images(folder: Path) -> tuple[Path, dict[str, str]]:
    """The class of each image is the name of its sub-folder."""
    return folder, {name: Path(name).parts[0] for name in ImageSet.of(folder).names}


def first_labels(truth: dict[str, str], known: float, per_class: int, seed: int = 0) -> dict[str, str]:
    """Random images of random classes."""
    random = np.random.default_rng(seed)
    classes = random.permutation(sorted(set(truth.values()))).tolist()
    of_class = {c: [path for path, true in truth.items() if true == c] for c in classes}
    return {
        path: c
        for c in classes[: round(known * len(classes))]
        for path in random.permutation(of_class[c])[:per_class].tolist()
    }


def unseen_images(truth: dict[str, str], share: float, seed: int = 0) -> frozenset[str]:
    """Random images that are never labelled."""
    random = np.random.default_rng([seed, 1])
    return frozenset(random.permutation(sorted(truth))[: round(share * len(truth))].tolist())


def without(truth: dict[str, str], unseen: Collection[str]) -> dict[str, str]:
    return {path: true for path, true in truth.items() if path not in unseen}


def simulate(
    images: Any,
    truth: dict[str, str],
    labels: dict[str, str],
    user: SimulatedUser,
    output: Path,
    rounds: int,
    options: dict[str, Any],
    refit_options: dict[str, Any],
) -> Iterator[Round]:
    """Fit, then label and fit again; each round is yielded when it is finished."""
    n_classes = len(set(truth.values()))
    common = {"images": images, "progress": False, "report": False}
    first = fit(labels=labels, n_classes=n_classes, output=output / "0", **common, **options)

    def fit_again(run: Run, given: LabelFile, number: int) -> Run:
        return fit(labels=given, start_from=run.path, output=output / str(number), **common, **refit_options)

    return label_in_rounds(first, user, fit_again, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", type=Path, help="folder with a sub-folder for each class; default: the demo's images"
    )
    parser.add_argument("--per-class", type=int, default=150, help="images of each class of the demo")
    parser.add_argument("--known", type=float, default=0.5, help="share of the classes that have labels at first")
    parser.add_argument("--labels", type=int, default=10, help="first labels of each of these classes")
    parser.add_argument("--clusters", type=int, default=2, help="categories named in a round")
    parser.add_argument("--batch", type=int, default=30, help="doubtful images labelled in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--wrong-labels", type=float, default=0.0, help="share of the labels that are wrong")
    parser.add_argument("--unseen", type=float, default=0.0, help="share of the images that the user never labels")
    parser.add_argument("--few", type=int, help="label only this many images of a category to name it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backbone", default="vit_tiny_patch4_32.promptcal")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--keep-confirmed", action="store_true")
    parser.add_argument("--first-set", action="append", default=[], metavar="KEY=VALUE", help="of the first fit only")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the fits with --from only")
    args = parser.parse_args()
    images, truth = demo_images(args.per_class) if args.images is None else folder_images(args.images)
    user = SimulatedUser(
        truth,
        wrong_labels=args.wrong_labels,
        clusters=args.clusters,
        images=args.batch,
        images_per_cluster=args.few,
        unseen=unseen_images(truth, args.unseen, args.seed),
        seed=args.seed,
    )
    preset = "quick" if args.weights is None else None
    options = {"backbone": args.backbone, "weights": args.weights, "preset": preset, "seed": args.seed}
    began = time.perf_counter()
    print(f"{len(truth):,} images, {len(set(truth.values()))} classes, {args.wrong_labels:.0%} wrong labels\n")
    print("| round | labels | untouched images | before | after | gain | gain by name | unseen | kept |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    with tempfile.TemporaryDirectory() as output:
        for r in simulate(
            images,
            truth,
            first_labels(without(truth, user.unseen), args.known, args.labels, args.seed),
            user,
            Path(output),
            args.rounds,
            {**options, "overrides": [*FROZEN, *args.first_set]},
            {"overrides": args.set, "keep_confirmed": args.keep_confirmed},
        ):
            found.append(r)
            figures = f"{r.before:.1f} | {r.after:.1f} | {r.gain:+.1f} | {r.named_gain:+.1f} | {r.unseen_after:.1f}"
            print(f"| {r.number} | {r.labels} | {r.untouched} | {figures} | {r.kept or '-'} |", flush=True)
    last = found[-1]
    print(f"\nworst round {min(r.gain for r in found):+.1f}, overall {last.first:.1f} to {last.after:.1f}")
    print(f"images that are never labelled: {last.unseen_first:.1f} to {last.unseen_after:.1f}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
