"""All shards of a source, by an engine: skip what is finished, collect problems, write the manifest at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal.errors import DataError, Interrupted, RunError, TryAgainError
from promptcal.runtime.interrupts import StopRequest
from promptcal.runtime.progress import progress_bar
from promptcal.shards.engines import EngineSettings, engine
from promptcal.shards.engines.worker import WorkerShare, array_share
from promptcal.shards.find_shards import DEFAULT_SIZE, find_shards
from promptcal.shards.full_disk import explained_disk_errors
from promptcal.shards.manifest import InputShard, ShardManifest
from promptcal.shards.shard_folder import ShardFolder
from promptcal.shards.shard_task import ShardModel, ShardResult, ShardTask
from promptcal.shards.unique_ids import check_ids_differ


@dataclass(frozen=True)
class ShardJob:
    """What to compute from which source, and how. ``embeddings``: the source has embeddings instead of images."""

    source: tuple[str, ...]
    model: ShardModel
    output: Path
    engine: str = "local"
    settings: EngineSettings = field(default_factory=EngineSettings)
    shard_size: int = DEFAULT_SIZE
    embeddings: bool = False
    device: str | None = None


@dataclass(frozen=True)
class ShardSummary:
    """``manifest`` is None as long as other processes have shards to finish. The numbers are of this command."""

    folder: ShardFolder
    manifest: ShardManifest | None
    n_shards: int
    skipped: int
    rows: int
    unreadable: int


def process_shards(job: ShardJob, console: Console) -> ShardSummary:
    """Compute what is missing; a shard with a problem does not stop the others."""
    folder = ShardFolder(job.output)
    find = partial(find_shards, job.source, size=job.shard_size, embeddings=job.embeddings)
    with explained_disk_errors():
        plan = folder.begin(job.model.identity(), job.source, find)
    share = array_share() if job.engine == "array" else WorkerShare()
    own = plan.shards[share.index :: share.n]
    todo = folder.unfinished(own)
    done = _Done(len(own), len(own) - len(todo))
    stop = StopRequest()
    with stop.listening():
        try:
            with progress_bar(console) as bar:
                _compute(job, todo, done, bar)
                done.check_problems()
                with explained_disk_errors():
                    manifest = folder.finish(plan, partial(_check_ids, folder, bar))
        except KeyboardInterrupt:
            message = f"stopped; {done.described()}, and the same command continues"
            raise Interrupted(message, stop.exit_code) from None
    return ShardSummary(folder, manifest, len(plan.shards), len(own) - len(todo), done.rows, done.unreadable)


class _Done:
    """What is finished of ``n`` shards."""

    def __init__(self, n: int, finished: int) -> None:
        self.n = n
        self.finished = finished
        self.rows = self.unreadable = 0
        self.problems: list[ShardResult] = []

    def add(self, result: ShardResult) -> None:
        if result.problem is not None:
            self.problems.append(result)
            return
        self.finished += 1
        self.rows += result.rows
        self.unreadable += result.unreadable

    def described(self) -> str:
        return f"{self.finished} of {self.n} shards are finished"

    def check_problems(self) -> None:
        if self.problems:
            first = min(self.problems, key=lambda result: result.problem == "access")
            more = f" ({len(self.problems) - 1} more shards have problems)" if len(self.problems) > 1 else ""
            kind = TryAgainError if first.problem == "access" else DataError
            raise kind(f"{first.message}{more}; the other {self.finished} shards are finished and kept")


def _compute(job: ShardJob, todo: Sequence[InputShard], done: _Done, bar: Any) -> None:
    task = bar.add_task("shards", total=done.n, completed=done.finished, note="")

    def receive(result: ShardResult) -> None:
        done.add(result)
        bar.update(task, advance=1, note=f"{done.rows:,} rows")
        if result.problem not in ("disk", "output"):
            return
        kept = f"{result.message}: {done.described()} and kept"
        if result.problem == "output":
            raise RunError(f"{kept}; make the output writable, then run the same command again")
        raise TryAgainError(f"{kept}; free some space, then run the same command again")

    if todo:
        engine(job.engine)(todo, ShardTask(job.model, job.output.absolute(), job.device), job.settings, receive)


def _check_ids(folder: ShardFolder, bar: Any, shards: list[InputShard], rows: int) -> None:
    task = bar.add_task("comparing ids", total=len(shards), note="")
    check_ids_differ(folder, shards, rows, lambda done, total: bar.update(task, completed=done, total=total))
