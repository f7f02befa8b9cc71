"""The runs behind a table: each has a name that its settings determine, a directory of that name, and a state.

The name holds benchmark, method, the settings that differ from their preset, the seed, and a hash of all of it. So
tables share runs, and the next call finds a run again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from promptcal.config import Config
from promptcal.data.benchmarks import default_root, get_benchmark
from promptcal.errors import RunError
from promptcal.experiments.definition import keys_of_rows
from promptcal.experiments.run_records import RunRecord, benchmark_config, changed_settings, read_run, short_hash
from promptcal.experiments.table_request import KMEANS_REPEATS, TableRequest
from promptcal.pipeline.benchmark import run_benchmark
from promptcal.pipeline.published import GENERIC_IMAGES, NO_DISTILLATION, unmet_conditions
from promptcal.pipeline.request import BenchmarkRequest, Protocol
from promptcal.run.directory import RunDirectory

_NAME_LENGTH = 60  # of the settings in a directory's name; the hash distinguishes longer ones
# Settings that do not change a result, or that the name holds anyway.
_NOT_IN_HASH = {"seed", "device", "tensorboard", "data.store", "data.cache", "method"}

_ROOT = "ROOT"  # in place of the data root, where it does not matter

StateName = Literal["finished", "interrupted", "missing", "damaged", "data absent", "failed"]


@dataclass(frozen=True)
class State:
    """The state of a run, and the reason if the run cannot be used."""

    name: StateName
    reason: str = ""

    @classmethod
    def damaged(cls, error: RunError) -> "State":
        return cls("damaged", f"{str(error).partition(';')[0]}; delete its folder and run the table again")


@dataclass(frozen=True)
class StoredJob:
    """A finished run of which only the record was kept."""

    name: str
    stored: RunRecord

    @property
    def seed(self) -> int:
        return self.stored.seed

    @property
    def method(self) -> str:
        return self.stored.method

    def state(self, request: TableRequest) -> State:
        return State("finished")

    def run(self, request: TableRequest) -> None:
        raise RunError(f"{self.name} is a stored record; it cannot be run")

    def record(self, request: TableRequest) -> RunRecord:
        return self.stored

    def unmet_conditions(self, request: TableRequest) -> list[str]:
        if self.stored.unmet_conditions is not None:
            return self.stored.unmet_conditions
        missing = [NO_DISTILLATION] if self.stored.lacks_distillation else []
        return ["the record states no published protocol", *missing]


@dataclass(frozen=True)
class FitJob:
    """A benchmark fitted with a method. ``settings`` are those of the whole table, ``changes`` those of its row.

    ``weights`` are a file below the data root, ``repeats`` the seeds of k-means, ``generic_images`` a folder.
    """

    benchmark: str
    method: str
    seed: int
    settings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    weights: str | None = None
    repeats: int = KMEANS_REPEATS
    protocol: Protocol = "default"
    generic_images: str | None = None

    @cached_property
    def name(self) -> str:
        base = benchmark_config(self.benchmark, self.method, (f"clustering.repeats={KMEANS_REPEATS}",))
        changes = changed_settings(self._config(), base)
        changes = {key: value for key, value in changes.items() if key not in _NOT_IN_HASH}
        return job_name([self.benchmark, self.method], changes, self.seed)

    def state(self, request: TableRequest) -> State:
        directory = self._directory(request)
        if not directory.exists():
            return self._state_before_start(request)
        try:
            finished = directory.info().status == "finished"
            self._check_settings(directory)
            if finished:
                self.record(request)
        except RunError as error:
            return State.damaged(error)
        return State("finished" if finished else "interrupted")

    def run(self, request: TableRequest) -> None:
        directory, root = self._directory(request), _data_root(request)
        fit = BenchmarkRequest(
            name=self.benchmark,
            method=self.method,
            output=directory.path,
            root=root,
            seed=self.seed,
            device=request.device,
            overrides=self._overrides(str(root), self.generic_images),
            download=request.download,
            resume=directory.exists(),
            progress=request.progress,
            report=False,
            first_result=False,  # nobody looks at it, and the comparison with it is not in a table
            allow_long=True,
        )
        run_benchmark(fit)

    def record(self, request: TableRequest) -> RunRecord:
        return read_run(self._directory(request).path, self.benchmark)

    def unmet_conditions(self, request: TableRequest) -> list[str]:
        """The conditions of the published values that the run does not meet; of its images only once it exists."""
        unmet = unmet_conditions(self._config(), get_benchmark(self.benchmark).preset, self._changes_of_row(_ROOT))
        try:
            difference = self._directory(request).info().data_difference
        except RunError:  # not started, or damaged
            difference = None
        return unmet if difference is None else [*unmet, difference]

    def _state_before_start(self, request: TableRequest) -> State:
        directory, root = self._directory(request), _data_root(request)
        if directory.path.is_dir() and any(directory.path.iterdir()) and not directory.is_unbegun():
            return State.damaged(RunError(f"{directory.path} has no run.json"))
        entry = get_benchmark(self.benchmark)
        if entry.find(root) is None and not (request.download and entry.download):
            return State("data absent", f"{entry.title} is not in {root}; {entry.remedy}")
        if self.weights is not None and not (root / self.weights).is_file():
            return State("data absent", f"the weights {self.weights} are not in {root}; put them there")
        return State("missing")

    def _check_settings(self, directory: RunDirectory) -> None:
        """Reject a run that was made when a preset had other values."""
        made, now = directory.config(), self._config()
        then = changed_settings(made, now)
        for key, value in sorted(changed_settings(now, made).items()):
            if key not in {*_NOT_IN_HASH, "model.weights", GENERIC_IMAGES}:
                raise RunError(f"{directory.path} was made with {key}={then.get(key)}, which is {value} now")

    def _directory(self, request: TableRequest) -> RunDirectory:
        return RunDirectory(request.folder / self.name)

    def _config(self) -> Config:
        """The settings; the data root does not matter."""
        images = None if self.generic_images is None else "given"
        return benchmark_config(self.benchmark, self.method, self._overrides(_ROOT, images))

    def _overrides(self, root: str, generic_images: str | None) -> tuple[str, ...]:
        protocol = [f"protocol={self.protocol}"] if self.protocol != "default" else []
        images = [f"{GENERIC_IMAGES}={generic_images}"] if generic_images is not None else []
        repeats = f"clustering.repeats={self.repeats}"
        return (*protocol, repeats, *images, *self.settings, *self._changes_of_row(root))

    def _changes_of_row(self, root: str) -> tuple[str, ...]:
        weights = [f"model.weights={root}/{self.weights}"] if self.weights is not None else []
        return (*self.changes, *weights)


def _data_root(request: TableRequest) -> Path:
    return default_root() if request.root is None else Path(request.root)


def job_name(parts: Sequence[str], changes: dict[str, Any], seed: int) -> str:
    """Such as ``mini-promptcal-loss.beta=0.2-seed0-1a2b3c4d``; settings that rows of tables change come first."""
    digest = short_hash([list(parts), sorted(changes.items())])
    in_order = sorted(changes, key=lambda key: (key not in keys_of_rows(), key))
    readable = re.sub(r"[^\w.,=+-]+", "_", ",".join(f"{key}={changes[key]}" for key in in_order))
    readable = readable[:_NAME_LENGTH].rstrip(",.=_")
    return "-".join([*parts, *([readable] if readable else []), f"seed{seed}", digest])
