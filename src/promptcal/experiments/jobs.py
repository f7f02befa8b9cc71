"""The runs behind a table: each is known by its settings, lies in a directory of that name, and has a state there.

The name holds what the run is (benchmark, method, what differs from their preset, seed) and a hash of it, so that the
same run serves every table that needs it and is found again by the next call.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from promptcal.config import Config
from promptcal.data.benchmarks import default_root, setup
from promptcal.errors import RunError
from promptcal.experiments.definition import Stage, keys_of_rows
from promptcal.methods import load_config
from promptcal.run.inference import RunDirectory

_NAME_LENGTH = 60  # of the settings in a directory's name; the hash tells longer ones apart
# What a result does not depend on, or what stands in the name anyway.
_NOT_IN_HASH = {"seed", "device", "tensorboard", "data.store", "data.cache", "method", "n_classes"}

StateName = Literal["finished", "interrupted", "missing", "damaged", "data absent", "failed"]


@dataclass(frozen=True)
class State:
    """Where a run stands, and why if it stands badly."""

    name: StateName
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a finished run gives to a table: figures by part with the selected and the last epoch's weights."""

    selected: dict[str, float]
    last: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class RunOptions:
    """Where and how to run, on which no identity depends."""

    output: Path
    root: Path | None = None
    device: str | None = None
    download: bool = False
    progress: bool = True

    @property
    def data_root(self) -> Path:
        return default_root() if self.root is None else self.root


class Job(Protocol):
    """A run of some kind; `name` is its directory below the output."""

    @property
    def name(self) -> str: ...

    @property
    def seed(self) -> int: ...

    def state(self, where: RunOptions) -> State: ...

    def run(self, where: RunOptions) -> None: ...

    def outcome(self, where: RunOptions, stage: Stage) -> Outcome: ...


@dataclass(frozen=True)
class FitJob:
    """A benchmark fitted with a method, scored as the paper does."""

    benchmark: str
    method: str
    seed: int
    overrides: tuple[str, ...] = ()
    weights: str | None = field(default=None)  # a file below the data root

    @cached_property
    def name(self) -> str:
        return job_name([self.benchmark, self.method], self._changes(), self.seed)

    def state(self, where: RunOptions) -> State:
        directory = self._directory(where)
        if not directory.exists():
            return self._unstarted(where)
        try:
            finished = directory.info().get("status") == "finished"
            self._check_settings(directory)
            if finished:
                self.outcome(where, "final")
        except RunError as error:
            return State("damaged", str(error))
        return State("finished" if finished else "interrupted")

    def run(self, where: RunOptions) -> None:
        from promptcal import api  # the verb `table` comes from there

        api.benchmark(
            name=self.benchmark,
            method=self.method,
            output=self._directory(where).path,
            root=where.root,
            seed=self.seed,
            device=where.device,
            overrides=self._overrides(str(where.data_root)),
            download=where.download,
            resume=self._directory(where).exists(),
            progress=where.progress,
        )

    def outcome(self, where: RunOptions, stage: Stage) -> Outcome:
        file = self._directory(where).results_file
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            seconds = float(results["seconds"])
            if stage == "warmup":  # scored with the weights that stage 2 starts from, which may be the last
                warmup = results["warmup"]
                selected = percent(warmup["accuracy"])
                return Outcome(selected, selected if warmup["best_epoch"] == warmup["epochs"] else {}, seconds)
            scores = results["scores"]
            return Outcome(percent(scores["selected"]), percent(scores["last"]), seconds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be read ({error})"
            raise RunError(f"{file} {what}; delete its folder and run the table again") from error

    def _unstarted(self, where: RunOptions) -> State:
        directory = self._directory(where)
        if directory.path.is_dir() and any(directory.path.iterdir()) and not directory.is_unbegun():
            return State("damaged", f"{directory.path} has no run.json; delete the folder and run the table again")
        entry = setup(self.benchmark)
        if entry.source(where.data_root) is None and not (where.download and entry.dataset.download):
            return State("data absent", f"{entry.dataset.title} is not in {where.data_root}; {entry.dataset.remedy}")
        if self.weights is not None and not (where.data_root / self.weights).is_file():
            return State("data absent", f"the weights {self.weights} are not in {where.data_root}; put them there")
        return State("missing")

    def _check_settings(self, directory: RunDirectory) -> None:
        """A preset may have changed since the run was made; its figures are then not this table's."""
        made = flat(directory.config().model_dump())
        now = flat(benchmark_config(self.benchmark, self.method, self._overrides("ROOT")).model_dump())
        for key in sorted(now.keys() - _NOT_IN_HASH - {"model.weights"}):
            if made[key] != now[key]:
                raise RunError(
                    f"{directory.path} was made with {key}={made[key]}, which is {now[key]} now; "
                    "delete the folder and run the table again"
                )

    def _directory(self, where: RunOptions) -> RunDirectory:
        return RunDirectory(where.output / self.name)

    def _overrides(self, root: str) -> tuple[str, ...]:
        return self.overrides if self.weights is None else (*self.overrides, f"model.weights={root}/{self.weights}")

    def _changes(self) -> dict[str, Any]:
        """Settings that differ from those of benchmark and method, wherever the data lie."""
        plain, own = (
            flat(benchmark_config(self.benchmark, self.method, o).model_dump()) for o in ((), self._overrides("ROOT"))
        )
        return {k: v for k, v in own.items() if v != plain[k] and k not in _NOT_IN_HASH}


def benchmark_config(benchmark: str, method: str, overrides: Sequence[str]) -> Config:
    """The settings that `promptcal benchmark` takes."""
    entry = setup(benchmark)
    values = {"n_classes": entry.dataset.n_classes, "method": method}
    return load_config(preset=entry.preset, values=values, overrides=overrides)


def job_name(parts: Sequence[str], changes: dict[str, Any], seed: int) -> str:
    """``mini-promptcal-loss.beta=0.2-seed0-1a2b3c4d``: for people first, the hash for the rest.

    What rows of tables are about comes first, as there may not be room for all.
    """
    digest = short_hash([list(parts), sorted(changes.items())])
    in_order = sorted(changes, key=lambda key: (key not in keys_of_rows(), key))
    readable = re.sub(r"[^\w.,=+-]+", "_", ",".join(f"{key}={changes[key]}" for key in in_order))
    readable = readable[:_NAME_LENGTH].rstrip(",.=_")
    return "-".join([*parts, *([readable] if readable else []), f"seed{seed}", digest])


def short_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def percent(shares: dict[str, float | None]) -> dict[str, float]:
    """In per cent; parts with nothing to score are left out."""
    return {part: 100 * share for part, share in shares.items() if share is not None}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
