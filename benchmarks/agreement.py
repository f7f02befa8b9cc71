"""Compares training in compiled bf16 with float32 eager: the demo with three seeds each.

    python benchmarks/agreement.py [--device cuda] [--seeds 3]

Prints the mean difference of the losses by epoch, their standard deviation over seeds, and the accuracies.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measuring import show

from promptcal import demo

MODES: dict[str, dict[str, Any]] = {
    "fp32 eager": {"precision": "fp32", "compile": False},
    "bf16 compiled": {"precision": "bf16", "compile": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    losses: dict[str, list[list[float]]] = {}
    accuracies = []
    with tempfile.TemporaryDirectory() as folder:
        for name, mode in MODES.items():
            losses[name] = []
            for seed in range(given.seeds):
                output = Path(folder, f"{mode['precision']}-{seed}")
                overrides = ["tensorboard=false"]
                run = demo(output=output, seed=seed, device=given.device, overrides=overrides, progress=False, **mode)
                lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
                losses[name].append([json.loads(line)["loss"] for line in lines])
                found = run.directory.results()
                assert found is not None
                assert found.last is not None
                percent = found.last.percent()
                parts = (f"{percent[part]:.1f}" for part in ("all", "known", "new"))
                accuracies.append((name, seed, *parts, found.seconds))
    reference, other = (np.array(losses[name]) for name in MODES)
    spread = reference.std(axis=0, ddof=1)
    rows = zip(reference.mean(axis=0), np.abs(other - reference).mean(axis=0), spread, strict=True)
    header = ("epoch", "loss, fp32 eager", "mean difference", "standard deviation over seeds")
    show("Loss by epoch of the demo", header, [(i + 1, *map(float, row)) for i, row in enumerate(rows)])
    show("Accuracy of the demo, %", ("mode", "seed", "All", "Known", "New", "s"), accuracies)


if __name__ == "__main__":
    main()
