"""Several processes as one, as torchrun starts them: where this one stands, and what they tell each other.

Each process runs the backbone on its part of every batch. `Group.all_gather` puts the parts together in the order in
which a single process has them, and from there on all processes compute the same thing: heads, losses, affinity graph,
memory. The gradient of the own part is then complete where it stands, so that going back through the gathering takes no
message; the backbone, below it, has its gradients added up, and the heads, above it, have the same ones everywhere.

A process alone is the plain `Group`, of which every method gives back what it was given.
"""

import atexit
import hashlib
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from promptcal.errors import ConfigError, DataError, LostProcessError, PromptCALError, PromptCALWarning, TrainingError

T = TypeVar("T")
P = ParamSpec("P")

WAIT = timedelta(hours=12)  # for the first process's clustering, say; one that died is noticed at once, not by this
_MEETING = timedelta(minutes=10)
_DRIFT = 1e-3  # of a parameter's norm, that processes may differ by after an epoch
_BYTES_AT_ONCE = 1 << 28


class RankInfo(NamedTuple):
    """A process's number among all, and among those on its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @classmethod
    def here(cls) -> "RankInfo":
        """By the environment torchrun sets; without it, alone. Other launchers may leave out what is local."""
        told = os.environ
        if any(name not in told for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            return cls()
        rank, world = int(told["RANK"]), int(told["WORLD_SIZE"])
        return cls(rank, world, int(told.get("LOCAL_RANK", 0)), int(told.get("LOCAL_WORLD_SIZE", 1)))


def restarts() -> int:
    """How often torchrun has had to start this group of processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def launch() -> str | None:
    """What is the same for a group and for its restarts, and for no other: the job's id, or else torchrun's process."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{socket.gethostname()}:{os.getppid()}" if name in ("", "none") else name


class Group:
    """The processes that work on one fit: here, this one alone."""

    def __init__(self, place: RankInfo | None = None) -> None:
        self.place = place or RankInfo()

    @property
    def world(self) -> int:
        return self.place.world

    @property
    def is_first(self) -> bool:
        """The one that writes and speaks."""
        return self.place.rank == 0

    @property
    def is_local_first(self) -> bool:
        return self.place.local_rank == 0

    def part(self, n: int) -> slice:
        """This process's part of n things in a row; the last ones may have fewer."""
        size = -(-n // self.world)
        return slice(min(n, self.place.rank * size), min(n, (self.place.rank + 1) * size))

    def equal_part(self, n: int) -> Tensor:
        """Positions of this process's part of n things, as many for each process; the last thing may come again."""
        size = -(-n // self.world)
        return (self.place.rank * size + torch.arange(size)).clamp(max=n - 1)

    def check(self, batch_size: int, device: torch.device) -> None:
        """Refuse what several processes cannot do."""
        world, place = self.place.world, self.place
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
        if device.type == "cuda" and device.index not in (None, place.local_rank):
            raise ConfigError(f"each of {world} processes takes a GPU of its own; give --device cuda, not {device}")
        if device.type == "cuda" and place.local_world > torch.cuda.device_count():
            raise ConfigError(
                f"{place.local_world} processes on this machine have only {torch.cuda.device_count()} GPUs; "
                "start one for each (torchrun --nproc-per-node)"
            )

    def all_gather(self, rows: Tensor, views: int = 1) -> Tensor:
        """All processes' rows, with a gradient to the own ones; of several views, all first ones before all second."""
        return rows

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Put the sum over all processes in place of each tensor."""

    def broadcast_parameters(self, tensors: Iterable[Tensor]) -> None:
        """Put the first process's values in place of each tensor."""

    def sync_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Undo what rounding has moved apart; more than that is an error."""

    def on_first(self, work: Callable[[], T]) -> T:
        """What ``work`` gives on the first process, or the error that it raises there, on all of them."""
        return work()

    @contextmanager
    def locked_by_first(self, lock: AbstractContextManager[Any]) -> Iterator[None]:
        """A lock for all processes, held by the first; where it cannot be had, all raise why."""
        with ExitStack() as held:

            def take() -> None:
                held.enter_context(lock)

            self.on_first(take)
            yield

    def all_gather_object(self, thing: T) -> list[T]:
        """What each process has to tell, in order."""
        return [thing]

    def all_gather_list(self, rows: list[T]) -> list[T]:
        """All processes' lists, end to end."""
        return rows

    def all_reduce_max(self, number: int) -> int:
        return number

    def check_same(self, thing: Any, what: str) -> None:
        """Refuse ``what`` that is not the same for all processes."""

    def all_gather_bytes(self, part: Tensor) -> Tensor:
        """All processes' parts, in host memory and of any length, end to end."""
        return part

    def wait(self) -> None:
        """Until all are here."""

    def is_first_to_report(self, message: str) -> bool:
        return True


ALONE = Group()
_group = ALONE


def group() -> Group:
    """The processes this one belongs to."""
    return _group


def cores() -> int:
    """Processor cores for this process, if those on its machine share them fairly."""
    return max(1, (os.cpu_count() or 1) // _group.place.local_world)


class _Gathered(torch.autograd.Function):
    """All processes' rows. Since all go on to compute the same loss, the own rows' gradient is whole in each."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: "Processes") -> Tensor:
        ctx.own = slice(group.place.rank * len(rows), (group.place.rank + 1) * len(rows))
        return group.all_gather_rows(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[ctx.own], None


class Processes(Group):
    """Two or more, each with a device of its own; ``host`` is how they talk of what is in host memory."""

    def __init__(self, place: RankInfo, store: dist.Store) -> None:
        super().__init__(place)
        self._store = store
        self._host: Any = dist.new_group(backend="gloo", timeout=WAIT)

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        every = rows.new_empty(self.world * len(rows), *rows.shape[1:])
        with _talking():
            dist.all_gather_into_tensor(every, rows.detach().contiguous())
        return every

    def all_gather(self, rows: Tensor, views: int = 1) -> Tensor:
        every = _Gathered.apply(rows, self)
        by_view = every.view(self.world, views, len(rows) // views, *rows.shape[1:]).transpose(0, 1)
        return by_view.reshape(every.shape)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        flat = torch.cat([t.flatten() for t in tensors])  # one message instead of many
        with _talking():
            dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    @torch.no_grad()
    def broadcast_parameters(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self._of_first(tensor))

    @torch.no_grad()
    def sync_parameters(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            first = self._of_first(parameter)
            if (parameter - first).norm() > _DRIFT * first.norm():
                raise TrainingError(
                    f"process {self.place.rank} has drifted away from the first one; "
                    "run all of them on the same kind of device and the same versions"
                )
            parameter.copy_(first)

    def _of_first(self, tensor: Tensor) -> Tensor:
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
        with _talking():
            dist.broadcast(values, src=0)
        return values

    def on_first(self, work: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome = [work(), None]
            except PromptCALError as error:
                outcome = [None, error]
        with _talking():
            dist.broadcast_object_list(outcome, src=0, group=self._host)
        result, fault = outcome
        if fault is not None:
            raise fault
        return result

    def all_gather_object(self, thing: T) -> list[T]:
        every: list[Any] = [None] * self.world
        with _talking():
            dist.all_gather_object(every, thing, group=self._host)
        return every

    def all_reduce_max(self, number: int) -> int:
        """Through host memory, so that nobody waits for a device."""
        value = torch.tensor(number)
        with _talking():
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self._host)
        return int(value)

    def check_same(self, thing: Any, what: str) -> None:
        digest = hashlib.sha256(repr(thing).encode("utf-8", "surrogatepass")).hexdigest()
        if len(set(self.all_gather_object(digest))) > 1:
            raise DataError(f"{what} are not the same for all processes; give all machines the same ones")

    def all_gather_list(self, rows: list[T]) -> list[T]:
        return [row for told in self.all_gather_object(rows) for row in told]

    def all_gather_bytes(self, part: Tensor) -> Tensor:
        lengths = self.all_gather_object(len(part))
        every = part.new_empty(sum(lengths))
        for rank, own in enumerate(every.split(lengths)):
            if rank == self.place.rank:
                own.copy_(part)
            for piece in own.split(_BYTES_AT_ONCE):  # straight into its place: no second copy of everything
                with _talking():
                    dist.broadcast(piece, src=rank, group=self._host)
        return every

    def wait(self) -> None:
        self.all_reduce_max(0)

    def is_first_to_report(self, message: str) -> bool:
        """Whether no other process has said the same before; so that an error of all is read once."""
        try:
            return self._store.add(f"said/{message}", 1) == 1
        except RuntimeError:  # nobody left to ask
            return True


@contextmanager
def _talking() -> Iterator[None]:
    """Around every message: what fails there fails because someone is gone."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this run has ended or cannot be reached, so this one stops too; run the same command "
            "with --resume to go on from the last checkpoint (torchrun --max-restarts does so by itself)"
        ) from error


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromptCALWarning)
        yield


def distributed_entry_point(verb: Callable[P, T]) -> Callable[P, T]:
    """Let a verb be run by all processes torchrun has started: it finds them in `group`, and only the first speaks."""

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        found = _join()
        try:
            with nullcontext() if found.is_first else _no_warnings():
                return verb(*args, **kwargs)
        except BaseException as error:
            atexit.unregister(dist.destroy_process_group)  # which may wait for those that are gone
            if isinstance(error, PromptCALError):
                error.already_reported = (
                    not found.is_first_to_report(str(error))
                    if error.already_reported is None
                    else error.already_reported
                )
            raise

    return run


def _join() -> Group:
    """Meet the others, once in the life of a process."""
    global _group
    place = RankInfo.here()
    if place.world == 1 or _group is not ALONE:
        return _group
    if torch.cuda.is_available() and place.local_rank < torch.cuda.device_count():
        torch.cuda.set_device(place.local_rank)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, world = next(dist.rendezvous("env://", timeout=_MEETING))
        store = _fresh(store, rank, world)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        _group = Processes(place, dist.PrefixStore("promptcal", store))
    except RuntimeError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LostProcessError(
            f"process {place.rank} of {place.world} cannot meet the others at {address} ({error}); "
            "check that all machines reach that address, or leave torchrun out to run alone"
        ) from error
    atexit.register(dist.destroy_process_group)
    return _group


def _fresh(store: dist.Store, rank: int, world: int) -> dist.Store:
    """A part of torchrun's store that none has written to before.

    The store outlives a restart, and with it the addresses of processes that are gone. So the first process makes up a
    name and tells it to whoever asks, by a question that none has asked before, until all have heard it.
    """
    if rank:
        question = uuid.uuid4().hex
        store.set(f"promptcal/question/{rank}", question)
        name = store.get(f"promptcal/answer/{question}").decode()  # waits
        store.set(f"promptcal/{name}/heard/{rank}", "")
        return dist.PrefixStore(name, store)
    name, missing = uuid.uuid4().hex, list(range(1, world))
    given_up = time.monotonic() + _MEETING.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"promptcal/question/{other}"]):  # an old one may be answered in vain
                question = store.get(f"promptcal/question/{other}").decode()
                store.set(f"promptcal/answer/{question}", name)
        missing = [other for other in missing if not store.check([f"promptcal/{name}/heard/{other}"])]
        if missing and time.monotonic() > given_up:
            raise RuntimeError(f"nothing is heard of {missing}")
        time.sleep(0.02)
    return dist.PrefixStore(name, store)
