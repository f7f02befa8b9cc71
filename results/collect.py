"""Keep what a finished run measured, small enough for the repository: `results/runs/NAME.json`.

    python results/collect.py BENCHMARK RUN...

NAME is the run directory's own name. Pictures, weights and assignments stay where they are.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from promptcal.config.schema import load_config
from promptcal.data.benchmarks import get_benchmark

HERE = Path(__file__).parent
OF_THE_PLACE = {"model.weights", "data.cache", "tensorboard", "device"}  # settings that say where, not what
SAID_ELSEWHERE = {"seed", "variant"}  # the values a variant sets are all named
KEPT = (
    "seconds",
    "loss",
    "affinity",
    "positives",
    "without_positives",
    "precision",
    "recall",
    "threshold",
    "known",
    "silhouette",
)


def collect(benchmark: str, run: Path) -> dict[str, Any]:
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    chosen = {key: value for key, value in _flat(config).items() if key not in OF_THE_PLACE}
    usual = _flat(_usual(benchmark, config))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "benchmark": benchmark,
        "method": config["method"],
        "seed": config["seed"],
        "settings": {k: v for k, v in chosen.items() if v != usual.get(k) and k not in SAID_ELSEWHERE},
        "config_hash": hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8],
        "seconds": results["seconds"],
        "accuracy": {
            "kmeans": results["kmeans"]["accuracy"],
            **({"warmup": results["warmup"]["accuracy"]} if "accuracy" in results.get("warmup", {}) else {}),
            **results["scores"],
        },
        "best_epochs": {stage: found["best_epoch"] for stage, found in results.items() if _is_stage(found)},
        "records": [_short(record) for record in records],
    }


def _usual(benchmark: str, config: dict[str, Any]) -> dict[str, Any]:
    """The benchmark's own settings for that method."""
    values = {"n_classes": config["n_classes"], "method": config["method"]}
    return load_config(preset=get_benchmark(benchmark).preset, values=values).model_dump()


def _is_stage(found: Any) -> bool:
    return isinstance(found, dict) and "best_epoch" in found


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """Of an epoch what the figures show, to four digits."""
    kept = {key: record[key] for key in ("stage", "epoch")}
    for key, value in record.items():
        name = key.removeprefix("cls/").removeprefix("validation/").removesuffix("_known").removesuffix("_new")
        if name in KEPT and not key.startswith("prompt/") and isinstance(value, float):
            kept[key] = float(f"{value:.4g}")
    return kept


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def main() -> None:
    benchmark, *runs = sys.argv[1:]
    for run in map(Path, runs):
        file = HERE / "runs" / f"{run.name}.json"
        text = json.dumps(collect(benchmark, run), indent=1)
        file.write_text(text + "\n", encoding="utf-8")
        print(f"{file.name}: {len(text) / 1024:.0f} kB")


if __name__ == "__main__":
    main()
