"""Shard i of n in this process; torchrun or a scheduler starts the n processes, on any number of machines."""

from collections.abc import Sequence

from promptcal.shards.engines import EngineSettings, OnResult
from promptcal.shards.engines.worker import Worker, machine_share
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_task import ShardTask


def run_shards(shards: Sequence[InputShard], task: ShardTask, settings: EngineSettings, on_result: OnResult) -> None:
    """``shards`` are those of this process."""
    worker = Worker(task, machine_share())
    for shard in shards:
        on_result(worker.run(shard))
