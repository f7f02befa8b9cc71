"""A process that works on shards: its share of the machine, and the model that it loads once."""

import os
from dataclasses import dataclass
from functools import cache

import torch

from promptcal.errors import ConfigError, PromptCALError
from promptcal.runtime.device import choose_device
from promptcal.runtime.threads import available_cores
from promptcal.shards.decoders import Decoders, decoders
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_task import LoadedModel, ShardResult, ShardTask


@dataclass(frozen=True)
class WorkerShare:
    """Process ``index`` of ``n`` on this machine."""

    index: int = 0
    n: int = 1

    @property
    def cores(self) -> int:
        return max(1, available_cores() // self.n)

    def device(self, wanted: str | None) -> str | None:
        """The device of this process: of several GPUs, each process has one."""
        if not uses_gpu(wanted) or wanted not in (None, "auto", "cuda"):
            return wanted
        return f"cuda:{self.index % torch.cuda.device_count()}"


def uses_gpu(wanted: str | None) -> bool:
    return choose_device(wanted or "auto").type == "cuda"


def default_workers(wanted: str | None) -> int:
    """One for each GPU, or for each core."""
    if not uses_gpu(wanted):
        return available_cores()
    return torch.cuda.device_count() if wanted in (None, "auto", "cuda") else 1


class Worker:
    """Loads the model and starts decoders when it gets its first shard."""

    def __init__(self, task: ShardTask, share: WorkerShare, decoding: Decoders | None = None) -> None:
        self.task = task
        self.share = share
        if share.n > 1:
            torch.set_num_threads(share.cores)
        # before CUDA is used, because processes that decode are forked
        self.decoders = decoding or decoders(share.cores if uses_gpu(task.device) else 1)
        self._load = cache(lambda: task.model.load(share.device(task.device)))

    def run(self, shard: InputShard) -> ShardResult:
        try:
            loaded: LoadedModel = self._load()
        except PromptCALError as error:
            return ShardResult(shard.name, problem="input", message=str(error))
        return self.task.run(shard, loaded, self.decoders)


def array_share() -> WorkerShare:
    """Which of how many processes this is, of all machines: torchrun's ranks, in each task of a Slurm array.

    A Slurm job without an array and without torchrun is divided among its tasks (srun).
    """
    index, n = 0, 1
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        first = environment_number("SLURM_ARRAY_TASK_MIN", 0)
        step = max(1, environment_number("SLURM_ARRAY_TASK_STEP", 1))
        last = environment_number("SLURM_ARRAY_TASK_MAX", first)
        index, n = (environment_number("SLURM_ARRAY_TASK_ID", 0) - first) // step, (last - first) // step + 1
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = environment_number("RANK", 0), environment_number("WORLD_SIZE", 1)
    else:
        rank, world = environment_number("SLURM_PROCID", 0), environment_number("SLURM_NTASKS", 1)
    share = WorkerShare(index * world + rank, n * world)
    if not 0 <= share.index < share.n:
        raise ConfigError(f"the environment names process {share.index} of {share.n}; check RANK and SLURM_ variables")
    return share


def machine_share() -> WorkerShare:
    """Which of how many processes on this machine."""
    if "LOCAL_RANK" in os.environ:
        return WorkerShare(environment_number("LOCAL_RANK", 0), max(1, environment_number("LOCAL_WORLD_SIZE", 1)))
    return WorkerShare(environment_number("SLURM_LOCALID", 0), max(1, environment_number("SLURM_NTASKS_PER_NODE", 1)))


def environment_number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {variable} is {text!r}, which is no number; unset it") from None
