"""Ways to run the same function on every shard. An engine divides the shards, nothing else.

Each is a function of the shards, the task, the settings and ``on_result``, which is called with each result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from promptcal.errors import ConfigError
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_task import ShardResult, ShardTask

OnResult = Callable[[ShardResult], None]
NAMES = ("local", "array", "ray")


@dataclass(frozen=True)
class EngineSettings:
    """``workers``: processes, by default one for each GPU or core. ``address``: of a Ray cluster."""

    workers: int | None = None
    address: str | None = None


class Engine(Protocol):
    def __call__(
        self, shards: Sequence[InputShard], task: ShardTask, settings: EngineSettings, on_result: OnResult
    ) -> None: ...


def engine(name: str) -> Engine:
    if name not in NAMES:
        raise ConfigError(f"there is no engine {name!r}; choose {', '.join(NAMES)}")
    return import_module(f"promptcal.shards.engines.{name}_engine").run_shards
