"""Time and memory of `promptcal cluster`, against scikit-learn's KMeans on the same features in the same run.

    python benchmarks/cluster.py                            50,000 x 384 synthetic features, 100 classes
    python benchmarks/cluster.py --rows 1000000             one million
    python benchmarks/cluster.py --auto                     the number of classes is estimated
    python benchmarks/cluster.py --features FILE --labels FILE --truth FILE     features of one's own
    python benchmarks/cluster.py --device cuda

Each part runs in a process of its own. Memory is the largest resident size of that process without what it had after
the same work on 300 random rows, which loads all libraries. KMeans has one start (n_init=1), no labels and nothing
else; `cluster` also trains a read-out, calibrates, and writes the run directory (`--report` adds the report). The last
line has the seconds of its phases.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def synthetic(folder: Path, rows: int, width: int, classes: int) -> dict[str, str]:
    """Overlapping classes in a file, written block by block; half of the rows of half of the classes are labelled."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(classes, width)).astype(np.float32)
    truth = generator.integers(classes, size=rows)
    array = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, width))
    for first in range(0, rows, 10_000):
        part = truth[first : first + 10_000]
        array[first : first + 10_000] = centres[part] + 3 * generator.normal(size=(len(part), width))
    array.flush()
    labelled = (truth < classes // 2) & (generator.random(rows) < 0.5)
    for name, chosen in (("labels.csv", np.flatnonzero(labelled)), ("truth.csv", np.arange(rows))):
        lines = "".join(f"{i},c{truth[i]}\n" for i in chosen)
        (folder / name).write_text(f"id,label\n{lines}")
    return {name: str(folder / file) for name, file in (("features", "x.npy"), ("labels", "labels.csv"))} | {
        "truth": str(folder / "truth.csv")
    }


def cluster(job: dict) -> dict:
    from promptcal import api

    names = ("features", "labels", "truth", "ids", "n_classes", "device", "report", "adapt")
    options = {name: job[name] for name in names} | ({"n_classes": "auto"} if job["auto"] else {})
    few = {"features": few_rows(), "labels": [0, 1, -1] * 100, "n_classes": 3, "device": job["device"]}
    api.cluster(**few, output=f"{job['output']}-few", report=job["report"], progress=False)
    loaded, began, cpu = peak_bytes(), time.perf_counter(), time.process_time()
    run = api.cluster(**options, output=job["output"], progress=False)
    took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "bytes": peak_bytes() - loaded}
    results = run.directory.results()
    assert results is not None
    accuracy = None if results.selected is None else results.selected.percent()
    return {**took, "accuracy": accuracy, "phases": results.phases, "categories": len(run.names)}


def few_rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(300, 8))


def kmeans(job: dict) -> dict:
    from sklearn.cluster import KMeans

    from promptcal.data.feature_set import FeatureSet
    from promptcal.data.labels import read_labels
    from promptcal.metrics import discovery_accuracy

    KMeans(3, n_init=1, random_state=0).fit_predict(FeatureSet.of(few_rows()).embeddings().numpy())
    loaded, began, cpu = peak_bytes(), time.perf_counter(), time.process_time()
    features = FeatureSet.of(job["features"], job["ids"])
    clusters = KMeans(job["n_classes"], n_init=1, random_state=0).fit_predict(features.embeddings().numpy())
    took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "bytes": peak_bytes() - loaded}
    accuracy = None
    if job["truth"]:
        images = features.pictures(None)
        truth, labels = (np.array(read_labels(job[name], images), dtype=object) for name in ("truth", "labels"))
        scored = np.array([label is None for label in labels])
        known = {label for label in labels if label is not None}
        found = discovery_accuracy([str(name) for name in truth[scored]], clusters[scored], sorted(known))
        accuracy = {"all": 100 * found.all, "known": 100 * found.known, "new": 100 * found.new}
    return {**took, "accuracy": accuracy}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PARTS = {"cluster": cluster, "scikit-learn KMeans, 1 start": kmeans}


def measured(part: str, job: dict) -> dict:
    """The part in a process of its own."""
    words = [sys.executable, __file__, "--part", part, "--job", json.dumps(job)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--ids", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--report", action="store_true", help="also write the report")
    parser.add_argument("--adapt", action="store_true", help="also try whitened features")
    parser.add_argument("--auto", action="store_true", help="give cluster no number of classes")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        print(json.dumps(PARTS[given.part](json.loads(given.job))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {
            key: None if value is None else str(value) for key, value in vars(given).items() if isinstance(value, Path)
        }
        if given.features is None:
            files = synthetic(folder, given.rows, given.width, given.classes)
        job = {"labels": None, "truth": None, "ids": None, **files}
        job |= {name: getattr(given, name) for name in ("device", "report", "adapt", "auto")}
        job["n_classes"] = given.classes
        found = {part: measured(part, {**job, "output": str(folder / "run")}) for part in PARTS}
        show(found, Path(str(job["features"])))


def show(found: dict[str, dict], file: Path) -> None:
    from promptcal.data.feature_set import FeatureSet

    features = FeatureSet.of(file)
    size = 4 * len(features) * features.width
    base = found["scikit-learn KMeans, 1 start"]
    print(f"\n{len(features):,} x {features.width} features, {size / 1e6:,.0f} MB in float32\n")
    print("| | seconds | CPU seconds | x KMeans | peak MB | x features | All | Known | New |")
    print(9 * "|---" + "|")
    for part, values in found.items():
        scores = values["accuracy"] or {}
        cells = [f"{scores[key]:.1f}" if key in scores else "-" for key in ("all", "known", "new")]
        times = f"{values['seconds']:.1f} | {values['cpu']:.1f} | {values['cpu'] / base['cpu']:.2f}"
        memory = f"{values['bytes'] / 1e6:,.0f} | {values['bytes'] / size:.2f}"
        print(f"| {part} | {times} | {memory} | {' | '.join(cells)} |")
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in found["cluster"]["phases"].items())
    print(f"\n{found['cluster']['categories']} categories; seconds of cluster: {phases}")


if __name__ == "__main__":
    main()
