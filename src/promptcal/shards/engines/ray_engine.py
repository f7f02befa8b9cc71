"""Ray Data: actors of a cluster, or of Ray on this machine, each with a GPU or a core.

An actor takes one shard at a time, so a shard is written as by the other engines, and Ray gives the shard of a lost
actor to another one. With GPUs, images are decoded by tasks on the cores of the whole cluster. All machines must find
the source, the run and the output under the same paths.
"""

import logging
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from promptcal.errors import ConfigError, MissingPackageError, PromptCALError, TryAgainError, shorten
from promptcal.runtime.threads import available_cores
from promptcal.shards.decoders import CropSize, DecodedChunk, Decoders, decode_chunk, in_order
from promptcal.shards.engines import EngineSettings, OnResult
from promptcal.shards.engines.worker import Worker, WorkerShare
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_task import ShardResult, ShardTask

_SHARD, _RESULT = "shard", "result"  # the column of the rows that Ray passes on


def run_shards(shards: Sequence[InputShard], task: ShardTask, settings: EngineSettings, on_result: OnResult) -> None:
    with _connected(settings.address) as ray:
        resources = ray.cluster_resources()
        cores, gpus = max(1, int(resources.get("CPU", 1))), int(resources.get("GPU", 0))
        uses_gpus = gpus > 0 and task.device in (None, "auto", "cuda")
        n = min(len(shards), settings.workers or (gpus if uses_gpus else cores))
        decoding = max(1, cores // n) if uses_gpus else 0
        found = ray.data.from_items(
            [{_SHARD: shard.model_dump_json()} for shard in shards], override_num_blocks=len(shards)
        ).map(
            ShardActor,
            fn_constructor_args=(task, decoding),
            # one shard at a time, so that no actor has two while another one waits
            compute=ray.data.ActorPoolStrategy(size=n, max_tasks_in_flight_per_actor=1),
            num_gpus=1 if uses_gpus else 0,
            num_cpus=0 if uses_gpus else 1,
        )
        try:
            for row in found.iter_rows():
                on_result(row[_RESULT])
        except ray.exceptions.RayError as error:
            reason = shorten(" ".join(str(error).split()), 300)
            raise TryAgainError(f"Ray stopped ({reason}); run the same command again to continue") from error


class ShardActor:
    """A worker in a process of Ray."""

    def __init__(self, task: ShardTask, decoding: int) -> None:
        share = WorkerShare(0, 1 if decoding else available_cores())
        self.worker = Worker(task, share, RayDecoders(decoding) if decoding else None)

    def __call__(self, row: dict[str, Any]) -> dict[str, ShardResult]:
        return {_RESULT: self.worker.run(InputShard.model_validate_json(row[_SHARD]))}


class RayDecoders(Decoders):
    """Tasks on any core of the cluster, a few more than ``n`` at a time."""

    def __init__(self, n: int) -> None:
        import ray

        self.n = n
        self._decode = ray.remote(num_cpus=1)(decode_chunk)

    def map(self, chunks: Iterable[Any], size: CropSize) -> Iterator[DecodedChunk]:
        return in_order(chunks, lambda chunk: self._decode.remote(chunk, size), _result, 3 * self.n)


def _result(reference: Any) -> Any:
    """The result of a task. Its own error is raised as in one process, without Ray's account of it."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PromptCALError):
            raise error.cause from None
        raise


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster or started here; one that was connected before stays so."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingPackageError("the engine ray needs Ray; pip install 'promptcal[ray]'") from error
    _check_reachable(address)
    was_connected = ray.is_initialized()
    if not was_connected:
        _start(ray, address)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if not was_connected:
            ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or start Ray here."""
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except ConnectionError as error:
        place = "on this machine" if address in (None, "auto") else f"at {address}"
        reason = shorten(" ".join(str(error).split()), 200)
        raise TryAgainError(f"no Ray cluster was found {place} ({reason}); start it, or correct --address") from error
    except ValueError as error:
        if address is None:
            raise
        raise _wrong_address(address, error) from error


def _check_reachable(address: str | None) -> None:
    """Ray itself would try for minutes."""
    host, separator, port = (address or "").rpartition("://")[2].partition(":")
    if not separator or not port.isdigit():
        return
    if int(port) >= 2**16:
        raise _wrong_address(address, "the port is too large")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise TryAgainError(
            f"there is no Ray cluster at {address} ({error}); start it, or correct --address"
        ) from error


def _wrong_address(address: str | None, error: object) -> ConfigError:
    reason = shorten(" ".join(str(error).split()), 200)
    return ConfigError(f"--address {address} is no address of a Ray cluster ({reason}); give HOST:PORT or auto")
