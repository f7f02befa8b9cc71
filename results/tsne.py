"""t-SNE maps before and after training, of some known and some new classes: `results/maps/NAME.json`.

    python results/tsne.py BENCHMARK --root DATA RUN

The embeddings are kept in RUN/before-and-after.npz, so that one machine can embed and another lay out.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from promptcal.data.benchmarks import benchmark
from promptcal.data.images import ImageSet
from promptcal.models import PromptedViT
from promptcal.report.embedding_map import compute_map
from promptcal.run.inference import RunDirectory, build_vit, embed_in_parts, stored_side
from promptcal.runtime.device import choose_device

HERE = Path(__file__).parent
CLASSES = 10  # of known and of new ones each
IMAGES = 120  # of each, unlabelled ones


def choose(directory: RunDirectory) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Which images, of which class, and whether that is known."""
    with open(directory.truth_file, encoding="utf-8") as file:
        truth = {row["path"]: row["label"] for row in csv.DictReader(file)}
    with open(directory.assignments_file, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    known = set(directory.info()["known_classes"])
    shown: set[str] = set()
    for group in (sorted(known), sorted(set(truth.values()) - known)):
        shown |= set(group[:: max(1, len(group) // CLASSES)][:CLASSES])
    chosen: dict[str, list[int]] = {name: [] for name in shown}
    for place, row in enumerate(rows):
        of_class = chosen.get(truth.get(row["path"], ""))
        if of_class is not None and row["labelled"] == "no" and len(of_class) < IMAGES:
            of_class.append(place)
    places = np.array(sorted(place for of_class in chosen.values() for place in of_class))
    classes = [truth[rows[place]["path"]] for place in places]
    return places, classes, np.array([name in known for name in classes])


def embed_before(images: ImageSet, directory: RunDirectory, places: np.ndarray) -> np.ndarray:
    """By the backbone as it came."""
    config, device = directory.config(), choose_device("auto")
    vit = PromptedViT(build_vit(config, pretrained=True).backbone, prompts=0).to(device).eval()
    _, found = embed_in_parts(
        vit, images.subset(places.tolist()), stored_side(config, vit), skip_unreadable=False, console=Console()
    )
    return found.cpu().numpy()


def features(images: ImageSet, directory: RunDirectory) -> dict[str, np.ndarray]:
    kept = directory.path / "before-and-after.npz"
    if not kept.exists():
        places, classes, known = choose(directory)
        after = np.load(directory.embeddings_file, mmap_mode="r")[places]
        before = embed_before(images, directory, places)
        halves = {"before": before.astype(np.float16), "after": after.astype(np.float16)}
        np.savez_compressed(kept, classes=np.array(classes), known=known, **halves)
    with np.load(kept) as found:
        return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("run", type=Path)
    parser.add_argument("--root", help="folder with the data sets")
    arguments = parser.parse_args()
    found = features(benchmark(arguments.benchmark, arguments.root, False).train, RunDirectory(arguments.run))
    map_of = {when: compute_map(found[when].astype(np.float32), seed=0) for when in ("before", "after")}
    kept = {
        "classes": found["classes"].tolist(),
        "known": found["known"].tolist(),
        **{when: [[round(float(x), 3) for x in point] for point in points] for when, points in map_of.items()},
    }
    (HERE / "maps").mkdir(exist_ok=True)
    (HERE / "maps" / f"{arguments.run.name}.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
