"""Process groups as torchrun starts them: ranks and collective operations.

Each process runs the backbone on its part of every batch. After `Group.all_gather` of the embeddings, all processes
compute the same heads, losses, graph and memory. So each has the complete gradient of its own embeddings, and the
backward pass of all-gather needs no communication. Only the gradients of the backbone are summed over the processes.
"""

import atexit
import hashlib
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from promptcal.errors import ConfigError, DataError, LostProcessError, PromptCALError, PromptCALWarning, TrainingError
from promptcal.runtime.threads import available_cores

T = TypeVar("T")
P = ParamSpec("P")

_COLLECTIVE_TIMEOUT = timedelta(hours=12)  # longer than any clustering on rank 0; a dead process is detected sooner
_RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
_MAX_DRIFT = 1e-3  # allowed difference between processes after an epoch, relative to a parameter's norm
_MAX_MESSAGE_BYTES = 1 << 28


class RankInfo(NamedTuple):
    """Rank and world size, of all processes and of those on this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @classmethod
    def here(cls) -> "RankInfo":
        """From torchrun's environment variables; without them, a single process. Some launchers omit the local ones."""
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            return cls()
        defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        return cls(*(int(os.environ.get(name, default)) for name, default in defaults.items()))


def restarts() -> int:
    """How often torchrun has restarted this group of processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def launch() -> str | None:
    """Identifies a launch including its restarts: the job's id, or else the host and torchrun's process id."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{socket.gethostname()}:{os.getppid()}" if name in ("", "none") else name


class Group:
    """The processes of one fit, with one device each, connected by ``store``.

    In a single process, which has no store, the collective operations return their input.
    """

    def __init__(self, rank_info: RankInfo | None = None, store: dist.Store | None = None) -> None:
        self.rank_info = rank_info or RankInfo()
        self._store = store
        # for host memory; None in a single process
        self._host: Any = None if store is None else dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT)

    @property
    def world(self) -> int:
        return self.rank_info.world

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and messages."""
        return self.rank_info.rank == 0

    @property
    def is_local_first(self) -> bool:
        return self.rank_info.local_rank == 0

    def part(self, n: int) -> slice:
        """This process's slice of n items; the last processes may get fewer."""
        size = -(-n // self.world)
        return slice(min(n, self.rank_info.rank * size), min(n, (self.rank_info.rank + 1) * size))

    def equal_part(self, n: int) -> Tensor:
        """Indices of this process's part of n items, equally many for each process; the last item may be repeated."""
        size = -(-n // self.world)
        return (self.rank_info.rank * size + torch.arange(size)).clamp(max=n - 1)

    def check(self, batch_size: int, device: torch.device) -> None:
        """Raise an error for settings that several processes do not support."""
        _, world, local_rank, local_world = self.rank_info
        if world == 1:
            return
        if batch_size % world:
            below = max(world, batch_size // world * world)
            raise ConfigError(
                f"data.batch_size ({batch_size}) cannot be divided among {world} processes; "
                f"choose a multiple, such as --set data.batch_size={below}"
            )
        if device.type not in ("cpu", "cuda"):
            raise ConfigError(f"{world} processes can share work on cpu or cuda, not on {device.type}; choose --device")
        if device.type == "cuda" and device.index not in (None, local_rank):
            raise ConfigError(f"each of {world} processes uses its own GPU; give --device cuda, not {device}")
        if device.type == "cuda" and local_world > (gpus := torch.cuda.device_count()):
            reason = f"{local_world} processes on this machine have only {gpus} GPUs"
            raise ConfigError(f"{reason}; start one for each (torchrun --nproc-per-node)")

    def all_gather(self, rows: Tensor, views: int = 1) -> Tensor:
        """The rows of all processes, differentiable; all first views come before all second views."""
        if self._host is None:
            return rows
        every = _AllGather.apply(rows, self.rank_info)
        by_view = every.view(self.world, views, len(rows) // views, *rows.shape[1:]).transpose(0, 1)
        return by_view.reshape(every.shape)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self._host is None or not tensors:
            return
        flat = torch.cat([t.flatten() for t in tensors])  # one collective operation instead of many
        with _report_lost_process():
            dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    @torch.no_grad()
    def broadcast_parameters(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by the one of rank 0."""
        for tensor in tensors if self._host else ():
            tensor.copy_(_from_first(tensor))

    @torch.no_grad()
    def sync_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Set all processes to rank 0's values; differences larger than rounding are an error."""
        for parameter in parameters if self._host else ():
            first = _from_first(parameter)
            if (parameter - first).norm() > _MAX_DRIFT * first.norm():
                raise TrainingError(
                    f"the parameters of process {self.rank_info.rank} differ from those of process 0; "
                    "run all processes on the same kind of device with the same versions"
                )
            parameter.copy_(first)

    def on_first(self, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0; return its result, or raise its error, on all processes."""
        if self._host is None:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome = [work(), None]
            except PromptCALError as error:
                outcome = [None, error]
        with _report_lost_process():
            dist.broadcast_object_list(outcome, src=0, group=self._host)
        result, failure = outcome
        if failure is not None:
            raise failure
        return result

    @contextmanager
    def locked_by_first(self, lock: AbstractContextManager[None]) -> Iterator[None]:
        """A lock held by rank 0 for all processes; if it fails, all processes raise the error."""
        with ExitStack() as held:
            self.on_first(lambda: held.enter_context(lock))
            yield

    def all_gather_object(self, thing: T) -> list[T]:
        """The objects of all processes, by rank."""
        if self._host is None:
            return [thing]
        every: list[Any] = [None] * self.world
        with _report_lost_process():
            dist.all_gather_object(every, thing, group=self._host)
        return every

    def all_gather_list(self, rows: list[T]) -> list[T]:
        """The lists of all processes, concatenated."""
        return [row for part in self.all_gather_object(rows) for row in part]

    def all_gather_bytes(self, part: Tensor) -> Tensor:
        """The parts of all processes (host memory, any length), concatenated."""
        if self._host is None:
            return part
        lengths = self.all_gather_object(len(part))
        every = part.new_empty(sum(lengths))
        for rank, own in enumerate(every.split(lengths)):
            if rank == self.rank_info.rank:
                own.copy_(part)
            for piece in own.split(_MAX_MESSAGE_BYTES):  # directly into the result, without a second copy
                with _report_lost_process():
                    dist.broadcast(piece, src=rank, group=self._host)
        return every

    def all_reduce_max(self, number: int) -> int:
        """The largest number, through host memory, so that no process waits for its device."""
        if self._host is None:
            return number
        value = torch.tensor(number)
        with _report_lost_process():
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self._host)
        return int(value)

    def wait(self) -> None:
        """Barrier: wait for all processes."""
        self.all_reduce_max(0)

    def check_same(self, thing: Any, what: str) -> None:
        """Raise an error if ``thing`` differs between the processes; ``what`` names it."""
        digest = hashlib.sha256(repr(thing).encode("utf-8", "surrogatepass")).hexdigest()
        if len(set(self.all_gather_object(digest))) > 1:
            raise DataError(f"{what} are not the same for all processes; give all machines the same ones")

    def is_first_to_report(self, message: str) -> bool:
        """Whether no other process has reported the same message; so an error of all processes is shown once."""
        try:
            return self._store is None or self._store.add(f"reported/{message}", 1) == 1
        except RuntimeError:  # the store is gone
            return True


ALONE = Group()
_group = ALONE


def group() -> Group:
    """The group of this process."""
    return _group


def cores() -> int:
    """CPU cores per process on this machine."""
    return max(1, available_cores() // _group.rank_info.local_world)


class _AllGather(torch.autograd.Function):
    """Differentiable all-gather. All processes compute the same loss, so the gradient of the own rows is complete."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank_info: RankInfo) -> Tensor:
        ctx.own = slice(rank_info.rank * len(rows), (rank_info.rank + 1) * len(rows))
        every = rows.new_empty(rank_info.world * len(rows), *rows.shape[1:])
        with _report_lost_process():
            dist.all_gather_into_tensor(every, rows.detach().contiguous())
        return every

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[ctx.own], None


def _from_first(tensor: Tensor) -> Tensor:
    values = tensor.detach().clone(memory_format=torch.contiguous_format)
    with _report_lost_process():
        dist.broadcast(values, src=0)
    return values


@contextmanager
def _report_lost_process() -> Iterator[None]:
    """Put around every collective operation, which fails if another process has ended."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this run has ended or cannot be reached, so this one stops too; run the same command "
            "with --resume to continue from the last checkpoint (torchrun --max-restarts does this automatically)"
        ) from error


def distributed_entry_point(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for functions that run in all processes of torchrun: joins them to `group`; only rank 0 warns."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        joined = _join()
        try:
            with ExitStack() as stack:
                if not joined.is_first:
                    stack.enter_context(warnings.catch_warnings())
                    warnings.simplefilter("ignore", PromptCALWarning)
                return function(*args, **kwargs)
        except BaseException as error:
            atexit.unregister(dist.destroy_process_group)  # it may wait for processes that are gone
            if isinstance(error, PromptCALError) and error.already_reported is None:
                error.already_reported = not joined.is_first_to_report(str(error))
            raise

    return run


def _join() -> Group:
    """Join the process group, once per process."""
    global _group
    rank_info = RankInfo.here()
    if rank_info.world == 1 or _group is not ALONE:
        return _group
    if torch.cuda.is_available() and rank_info.local_rank < torch.cuda.device_count():
        torch.cuda.set_device(rank_info.local_rank)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, world = next(dist.rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT))
        store = _new_namespace(store, rank, world)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        _group = Group(rank_info, dist.PrefixStore("promptcal", store))
    except RuntimeError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LostProcessError(
            f"process {rank_info.rank} of {rank_info.world} cannot connect to the others at {address} ({error}); "
            "check that all machines can reach that address, or run a single process without torchrun"
        ) from error
    atexit.register(dist.destroy_process_group)
    return _group


def _new_namespace(store: dist.Store, rank: int, world: int) -> dist.Store:
    """A namespace of torchrun's store with a new name, without keys of earlier processes.

    The store survives a restart and still holds the addresses of processes that are gone. So rank 0 chooses a random
    name and sends it to the others: it answers each rank's random question until all ranks have confirmed.
    """
    if rank:
        question = uuid.uuid4().hex
        store.set(f"promptcal/question/{rank}", question)
        name = store.get(f"promptcal/answer/{question}").decode()  # waits
        store.set(f"promptcal/{name}/confirmed/{rank}", "")
        return dist.PrefixStore(name, store)
    name, missing = uuid.uuid4().hex, list(range(1, world))
    deadline = time.monotonic() + _RENDEZVOUS_TIMEOUT.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"promptcal/question/{other}"]):  # it may be from before a restart
                question = store.get(f"promptcal/question/{other}").decode()
                store.set(f"promptcal/answer/{question}", name)
        missing = [other for other in missing if not store.check([f"promptcal/{name}/confirmed/{other}"])]
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"no answer from processes {missing}")
        time.sleep(0.02)
    return dist.PrefixStore(name, store)
