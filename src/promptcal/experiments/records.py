"""Run records: what a finished run contributes to tables, documents and figures.

A record is read from a run directory, or from a file where only the record of a run was kept.
"""

import hashlib
import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

from pydantic import Field

from promptcal.config import Config
from promptcal.data.benchmarks import get_benchmark
from promptcal.errors import RunError
from promptcal.experiments.definition import FINAL
from promptcal.methods import load_config
from promptcal.run.directory import RunDirectory
from promptcal.run.results import Scores, StageResult
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel

# Settings that say where a run was made, not what it is.
_LOCATION = {"model.weights", "data.cache", "tensorboard", "device"}
_EPOCH_VALUES = {
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
}


@dataclass(frozen=True)
class Outcome:
    """Values by part with the weights of the selected and of the last epoch; empty where they were not scored."""

    selected: dict[str, float]
    last: dict[str, float]


class Record(Protocol):
    """What a table reads of a finished run of any kind."""

    @property
    def seconds(self) -> float: ...

    def outcome(self, score: str) -> Outcome: ...


class RunRecord(JSONModel):
    """A finished run on a benchmark.

    ``settings`` are those that differ from the preset of the benchmark, ``config_hash`` is of all of them.
    ``baselines`` are accuracies of the frozen backbone. ``readouts`` are accuracies of the last epoch's weights with
    other embeddings or assignments, one for each seed of k-means. ``epochs`` are the values of each epoch.
    """

    promptcal: str
    benchmark: str
    method: str
    seed: int
    settings: dict[str, Any]
    config_hash: str
    seconds: float
    baselines: dict[str, Scores] = Field(default_factory=dict)
    stages: dict[str, StageResult] = Field(default_factory=dict)
    selected: Scores
    last: Scores
    readouts: dict[str, list[Scores]] = Field(default_factory=dict)
    epochs: list[dict[str, Any]] = Field(default_factory=list)

    def write(self, file: Path) -> None:
        """One line for each epoch."""
        head = json.dumps(self.model_dump(exclude={"epochs"}), indent=1).removesuffix("\n}")
        epochs = ",\n".join(f"  {json.dumps(epoch)}" for epoch in self.epochs)
        files.write_text(file, f'{head},\n "epochs": [\n{epochs}\n ]\n}}\n')

    def outcome(self, score: str) -> Outcome:
        """``score`` is "final", or the name of a stage, of a baseline or of a read-out."""
        if score == FINAL:
            return Outcome(self.selected.percent(), self.last.percent())
        stage = self.stages.get(score)
        if stage is not None and stage.accuracy is not None:
            selected = stage.accuracy.percent()
            return Outcome(selected, selected if stage.kept_last_epoch else {})
        if score in self.baselines:
            return Outcome(self.baselines[score].percent(), {})
        if score in self.readouts:
            repeats = [scores.percent() for scores in self.readouts[score]]
            return Outcome({}, {part: mean(r[part] for r in repeats) for part in repeats[0]})
        scored = [name for name, found in self.stages.items() if found.accuracy is not None]
        raise RunError(
            f"this run of {self.method} has no score {score!r}; "
            f"it has {', '.join([FINAL, *scored, *self.baselines, *self.readouts])}"
        )

    def has_all_seconds(self) -> bool:
        """Whether ``seconds`` include all epochs: not where stage 1 is another run's, or epochs were not timed."""
        seconds = [epoch.get("seconds") for epoch in self.epochs]
        return None not in seconds and self.seconds >= sum(s for s in seconds if s is not None)


def read_record(folder: Path, name: str) -> RunRecord:
    """The record ``name`` of a folder of record files."""
    file = folder / f"{name}.json"
    if not file.is_file():
        raise RunError(f"there is no run record {file}; correct the name, or collect the run")
    return RunRecord.read(file)


def read_run(path: str | PathLike[str], benchmark: str) -> RunRecord:
    """The record of a finished run directory."""
    directory = RunDirectory(path)
    config = directory.config()
    settings = {k: v for k, v in flatten(config.model_dump()).items() if k not in _LOCATION}
    preset = flatten(benchmark_config(benchmark, config.method).model_dump())
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    results = directory.results()
    if results is None or results.selected is None or results.last is None or results.seconds is None:
        raise RunError(f"{directory.results_file} has no final scores; fit again")
    return RunRecord(
        promptcal=directory.info().promptcal,
        benchmark=benchmark,
        method=config.method,
        seed=config.seed,
        settings={k: v for k, v in settings.items() if v != preset.get(k) and k not in ("seed", "variant")},
        config_hash=digest,
        seconds=results.seconds,
        baselines=results.baselines,
        stages=results.stages,
        selected=results.selected,
        last=results.last,
        epochs=_read_epochs(directory.metrics_file),
    )


def collect(benchmark: str, runs: list[str], folder: str | PathLike[str]) -> list[Path]:
    """Write a record file for each finished run directory into ``folder``; the name is that of the run directory."""
    written = []
    for run in map(Path, runs):
        written.append(Path(folder) / f"{run.name}.json")
        read_run(run, benchmark).write(written[-1])
    return written


def benchmark_config(benchmark: str, method: str, overrides: tuple[str, ...] = ()) -> Config:
    """The settings that `promptcal benchmark` takes."""
    entry = get_benchmark(benchmark)
    values = {"n_classes": entry.n_classes, "method": method}
    return load_config(preset=entry.preset, values=values, overrides=overrides)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _read_epochs(file: Path) -> list[dict[str, Any]]:
    """The values that tables and figures show, to four digits."""
    if not file.is_file():
        return []
    epochs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        epoch = {key: values[key] for key in ("stage", "epoch")}
        for key, value in values.items():
            name = key.removeprefix("cls/").removeprefix("validation/").removesuffix("_known").removesuffix("_new")
            if name in _EPOCH_VALUES and not key.startswith("prompt/") and isinstance(value, float):
                epoch[key] = float(f"{value:.4g}")
        epochs.append(epoch)
    return epochs
