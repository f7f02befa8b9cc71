"""Run records: what a finished run contributes to tables and documents.

A record is read from a run directory, or from a file where only the record of a run was kept.
"""

import hashlib
import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from promptcal.config import Config, flatten
from promptcal.data.benchmarks import get_benchmark
from promptcal.errors import RunError
from promptcal.experiments.definition import FINAL
from promptcal.methods import METHODS, load_config
from promptcal.pipeline.published import GENERIC_IMAGES
from promptcal.run.directory import RunDirectory
from promptcal.run.epoch_records import read_records
from promptcal.run.results import Scores, StageResult
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel

# Settings that say where a run was made, not what it is.
_LOCATION = {"model.weights", GENERIC_IMAGES, "data.cache", "tensorboard", "device"}
_EPOCH_VALUES = {"seconds", "loss", "affinity", "known", "silhouette", "threshold"}
_EPOCH_VALUES |= {"positives", "without_positives", "precision", "recall"}  # of the affinity graph


@dataclass(frozen=True)
class ScoreValues:
    """Values by part with the weights of the selected and of the last epoch; empty where they were not scored."""

    selected: dict[str, float]
    last: dict[str, float]


class RunRecord(JSONModel):
    """A finished run on a benchmark.

    ``commit`` is that of the package, if it ran from a checkout. ``settings`` are those that differ from the preset of
    the benchmark, ``config_hash`` is of all of them.
    ``baselines`` are accuracies of the frozen backbone. ``unmet_conditions`` are those of `RunResults`.
    ``epochs`` are the values of each epoch.
    """

    model_config = ConfigDict(extra="ignore")  # records of earlier versions also have read-outs

    promptcal: str
    commit: str | None = None
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
    unmet_conditions: list[str] | None = None
    epochs: list[dict[str, Any]] = Field(default_factory=list)

    def write(self, file: Path) -> None:
        """One line for each epoch."""
        head = json.dumps(self.model_dump(exclude={"epochs"}), indent=1).removesuffix("\n}")
        epochs = ",\n".join(f"  {json.dumps(epoch)}" for epoch in self.epochs)
        files.write_text(file, f'{head},\n "epochs": [\n{epochs}\n ]\n}}\n')

    def values_of(self, score: str) -> ScoreValues:
        """``score`` is "final", or the name of a stage or of a baseline."""
        if score == FINAL:
            return ScoreValues(self.selected.percent(), self.last.percent())
        stage = self.stages.get(score)
        if stage is not None and stage.accuracy is not None:
            selected = stage.accuracy.percent()
            return ScoreValues(selected, selected if stage.kept_last_epoch else {})
        if score in self.baselines:
            return ScoreValues(self.baselines[score].percent(), {})
        scored = [name for name, found in self.stages.items() if found.accuracy is not None]
        raise RunError(
            f"this run of {self.method} has no score {score!r}; it has {', '.join([FINAL, *scored, *self.baselines])}"
        )

    @property
    def lacks_distillation(self) -> bool:
        """Whether generic images were not given to a method that can use them."""
        can_use = self.method in METHODS and METHODS[self.method].uses_generic_images
        return can_use and GENERIC_IMAGES not in self.settings

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
    config, results, info = directory.config(), directory.results(), directory.info()
    changes = changed_settings(config, benchmark_config(benchmark, config.method))
    if results is None or None in (results.selected, results.last, results.seconds):
        raise RunError(f"{directory.results_file} has no final scores; fit again")
    settings = {k: v for k, v in changes.items() if k not in {*_LOCATION, "seed", "variant"}}
    if config.data.generic_images is not None:
        settings[GENERIC_IMAGES] = "given"
    return RunRecord(
        promptcal=info.promptcal,
        commit=info.commit,
        benchmark=benchmark,
        method=config.method,
        seed=config.seed,
        settings=settings,
        config_hash=short_hash({k: v for k, v in flatten(config.model_dump()).items() if k not in _LOCATION}),
        **{
            key: getattr(results, key)
            for key in ("seconds", "baselines", "stages", "selected", "last", "unmet_conditions")
        },
        epochs=[_shown_values(record) for record in read_records(directory.metrics_file)],
    )


def collect(benchmark: str, runs: list[str], folder: str | PathLike[str]) -> list[Path]:
    """Write a record file for each finished run directory into ``folder``; the name is that of the run directory."""
    written = {Path(folder) / f"{Path(run).name}.json": read_run(run, benchmark) for run in runs}
    for file, record in written.items():
        record.write(file)
    return list(written)


def benchmark_config(benchmark: str, method: str, overrides: tuple[str, ...] = ()) -> Config:
    """The settings that `promptcal benchmark` takes."""
    entry = get_benchmark(benchmark)
    values = {"n_classes": entry.n_run_classes, "method": method}
    return load_config(preset=entry.preset, values=values, overrides=overrides)


def changed_settings(config: Config, base: Config) -> dict[str, Any]:
    """The settings of ``config`` that differ from those of ``base``."""
    before = flatten(base.model_dump())
    return {k: v for k, v in flatten(config.model_dump()).items() if v != before.get(k)}


def short_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _shown_values(record: dict[str, Any]) -> dict[str, Any]:
    """The values of an epoch that a record keeps, to four digits."""
    epoch = {key: record[key] for key in ("stage", "epoch")}
    for key, value in record.items():
        name = key.removeprefix("cls/").removeprefix("validation/").removesuffix("_known").removesuffix("_new")
        if name in _EPOCH_VALUES and not key.startswith("prompt/") and isinstance(value, float):
            epoch[key] = float(f"{value:.4g}")
    return epoch
