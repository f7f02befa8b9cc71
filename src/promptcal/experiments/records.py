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

from pydantic import BaseModel, ConfigDict, ValidationError

from promptcal._version import __version__
from promptcal.config.schema import Config, load_config
from promptcal.data.benchmarks import setup
from promptcal.errors import RunError
from promptcal.experiments.definition import FINAL
from promptcal.run.inference import RunDirectory
from promptcal.runtime import files

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


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Scores(_Frozen):
    """Accuracies in [0, 1]; None where there is nothing to score."""

    all: float | None
    known: float | None
    new: float | None
    separate_all: float | None
    separate_known: float | None
    separate_new: float | None

    def percent(self) -> dict[str, float]:
        return {part: 100 * value for part, value in self.model_dump().items() if value is not None}


class StageResult(_Frozen):
    best_epoch: int
    epochs: int
    score: float | None = None
    accuracy: Scores | None = None

    @property
    def kept_last_epoch(self) -> bool:
        return self.best_epoch == self.epochs


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


class RunRecord(_Frozen):
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
    baselines: dict[str, Scores] = {}
    stages: dict[str, StageResult] = {}
    selected: Scores
    last: Scores
    readouts: dict[str, list[Scores]] = {}
    epochs: list[dict[str, Any]] = []

    @classmethod
    def read(cls, file: Path) -> "RunRecord":
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(f"{file} is not a run record ({reason}); restore it, or collect the run again") from error

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


def read_run(path: str | PathLike[str], benchmark: str) -> RunRecord:
    """The record of a finished run directory."""
    directory = RunDirectory(path)
    config = directory.config()
    settings = {k: v for k, v in flatten(config.model_dump()).items() if k not in _LOCATION}
    preset = flatten(benchmark_config(benchmark, config.method).model_dump())
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    values = {
        "promptcal": __version__,
        "benchmark": benchmark,
        "method": config.method,
        "seed": config.seed,
        "settings": {k: v for k, v in settings.items() if v != preset.get(k) and k not in ("seed", "variant")},
        "config_hash": digest,
        "epochs": _read_epochs(directory.path / "metrics.jsonl"),
    }
    file = directory.results_file
    try:
        return RunRecord.model_validate({**values, **_read_results(file)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{file} is damaged ({reason}); delete its folder and run the table again") from error


def collect(benchmark: str, runs: list[str], folder: str | PathLike[str]) -> list[Path]:
    """Write a record file for each finished run directory into ``folder``; the name is that of the run directory."""
    written = []
    for run in map(Path, runs):
        written.append(Path(folder) / f"{run.name}.json")
        read_run(run, benchmark).write(written[-1])
    return written


def benchmark_config(benchmark: str, method: str, overrides: tuple[str, ...] = ()) -> Config:
    """The settings that `promptcal benchmark` takes."""
    entry = setup(benchmark)
    values = {"n_classes": entry.dataset.n_classes, "method": method}
    return load_config(preset=entry.preset, values=values, overrides=overrides)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _read_results(file: Path) -> dict[str, Any]:
    results = json.loads(file.read_text(encoding="utf-8"))
    parts = {name: found for name, found in results.items() if isinstance(found, dict)}
    return {
        "seconds": results["seconds"],
        **results["scores"],
        "stages": {name: found for name, found in parts.items() if "best_epoch" in found},
        "baselines": {
            name: found["accuracy"]
            for name, found in parts.items()
            if "accuracy" in found and "best_epoch" not in found
        },
    }


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
