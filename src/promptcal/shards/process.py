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
from promptcal.shards.manifest import InputShard, ShardManifest, ShardPlan
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
    plan = folder.begin(job.model.identity(), job.source, find)
    share = array_share() if job.engine == "array" else WorkerShare()
    own = plan.shards[share.index :: share.n]
    todo = folder.unfinished(ShardPlan(work={}, source=[], shards=own))
    results: list[ShardResult] = []
    stop = StopRequest()
    try:
        with stop.listening(), progress_bar(console) as bar:
            _compute(job, todo, results, bar, len(own))
            _check_problems(results, len(own))
            manifest = folder.finish(plan, partial(_check_ids, folder, bar))
    except KeyboardInterrupt:
        done = len(own) - len(todo) + sum(result.problem is None for result in results)
        message = f"stopped; {done} of {len(own)} shards are finished, and the same command continues"
        raise Interrupted(message, stop.exit_code) from None
    return ShardSummary(
        folder,
        manifest,
        len(plan.shards),
        len(own) - len(todo),
        sum(result.rows for result in results),
        sum(result.unreadable for result in results),
    )


def _compute(job: ShardJob, todo: Sequence[InputShard], results: list[ShardResult], bar: Any, n_own: int) -> None:
    task = bar.add_task("shards", total=n_own, completed=n_own - len(todo), note="")

    def receive(result: ShardResult) -> None:
        results.append(result)
        rows = sum(each.rows for each in results)
        bar.update(task, advance=1, note=f"{rows:,} rows")
        if result.problem in ("disk", "output"):
            done = n_own - len(todo) + sum(each.problem is None for each in results)
            said = f"{result.message}: {done} of {n_own} shards are finished and kept"
            if result.problem == "output":
                raise RunError(f"{said}; make the output writable, then run the same command again")
            raise TryAgainError(f"{said}; free some space, then run the same command again")

    if todo:
        engine(job.engine)(todo, ShardTask(job.model, job.output.absolute(), job.device), job.settings, receive)


def _check_problems(results: Sequence[ShardResult], n_own: int) -> None:
    problems = [result.message for result in results if result.problem is not None]
    if problems:
        more = f" ({len(problems) - 1} more shards have problems)" if len(problems) > 1 else ""
        raise DataError(f"{problems[0]}{more}; the other {n_own - len(problems)} shards are finished and kept")


def _check_ids(folder: ShardFolder, bar: Any, shards: list[InputShard]) -> None:
    rows = sum(entry.rows for shard in shards if (entry := folder.entry(shard.name)) is not None)
    task = bar.add_task("comparing ids", total=len(shards), note="")
    check_ids_differ(folder, shards, rows, lambda done: bar.update(task, completed=done))
