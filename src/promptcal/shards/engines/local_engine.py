"""Processes on this machine, one for each GPU or core."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from promptcal.errors import TryAgainError
from promptcal.runtime.children import begin_child
from promptcal.shards.engines import EngineSettings, OnResult
from promptcal.shards.engines.worker import Worker, WorkerShare, default_workers
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_task import ShardResult, ShardTask

_worker: Worker  # set in worker processes only


def run_shards(shards: Sequence[InputShard], task: ShardTask, settings: EngineSettings, on_result: OnResult) -> None:
    n = min(len(shards), settings.workers or default_workers(task.device))
    if n <= 1:
        worker = Worker(task, WorkerShare())
        for shard in shards:
            on_result(worker.run(shard))
        return
    with _pool(n, task) as pool:
        waiting: set[Future[ShardResult]] = set()
        left = iter(shards)
        for shard in left:
            waiting.add(pool.submit(_run, shard))
            if len(waiting) >= 2 * n:
                waiting = _received(waiting, on_result)
        while waiting:
            waiting = _received(waiting, on_result)


def _received(waiting: set[Future[ShardResult]], on_result: OnResult) -> set[Future[ShardResult]]:
    done, waiting = wait(waiting, return_when="FIRST_COMPLETED")
    try:
        for future in done:
            on_result(future.result())
    except BrokenProcessPool as error:
        raise TryAgainError(
            "a worker process was killed, perhaps because the memory is full; run the same command again to continue, "
            "with fewer --workers"
        ) from error
    return waiting


@contextmanager
def _pool(n: int, task: ShardTask) -> Iterator[ProcessPoolExecutor]:
    """Workers that end with this context, whatever ends it.

    They are forked from a process that has imported everything and never uses CUDA.
    """
    is_posix = os.name == "posix"
    context = multiprocessing.get_context("forkserver" if is_posix else "spawn")
    if is_posix:
        context.set_forkserver_preload([__name__, "promptcal.shards.run_model"])
    begun: Any = context.Value("i", 0)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(n, context, _begin, (begun, n, task))
    try:
        yield pool
        pool.shutdown()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
            process.join()


def _begin(begun: Any, n: int, task: ShardTask) -> None:
    """``begun`` counts the workers that have begun."""
    begin_child(os.getppid())  # which ends with the process that started it
    global _worker
    with begun.get_lock():
        index = begun.value
        begun.value += 1
    _worker = Worker(task, WorkerShare(index, n))


def _run(shard: InputShard) -> ShardResult:
    return _worker.run(shard)
