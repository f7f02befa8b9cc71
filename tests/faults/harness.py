"""Real fits in real processes, and faults that are injected at a chosen moment.

A server process imports the package once and forks a process for each command, so that a fit starts quickly. The
process that is killed is an ordinary one that runs the command line. Each process logs when it enters and leaves its
phases, so that a test can inject a fault in any of them.
"""

import errno
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["promptcal.cli.app", "promptcal.api", "harness"])

# The phases of a fit: a function by module, class (or none) and name.
PHASES = {
    "begin": ("promptcal.cli.app", None, "run"),
    "decode": ("promptcal.data.store", None, "_load"),
    "cache": ("promptcal.data.cache", None, "_write"),
    "training": ("promptcal.training.loop", "Loop", "step"),
    "checkpoint": ("promptcal.training.checkpoints", "Checkpoints", "save_last"),
    "clustering": ("promptcal.discovery.kmeans", "SemiSupervisedKMeans", "_best_starts"),
    "first result": ("promptcal.pipeline.first_result", None, "write_result"),
    "writing": ("promptcal.pipeline.finalize", None, "write_result"),
    "report": ("promptcal.api", None, "make_report"),
}
# Further moments at which a signal can arrive; they are not logged.
STAGES = {
    "arguments": ("typer.core", "TyperGroup", "make_context"),
    "inputs": ("promptcal.pipeline.fit", None, "read_inputs"),
    "session": ("promptcal.pipeline.session", None, "device_context"),  # the lock is held, nothing is written
    "preparation": ("promptcal.pipeline.fit", None, "prepare"),
    "stage": ("promptcal.pipeline.train", None, "_run_stage"),
    "workers end": ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter", "_shutdown_workers"),
    "release": ("filelock", "BaseFileLock", "release"),
    "message": ("promptcal.cli.app", None, "_finish"),
}
# The smallest fit with every phase: 4 patches per image, 12 steps.
SETTINGS = (
    "model.backbone=vit_tiny_patch4_32.promptcal",
    "model.image_size=8",
    "model.head_hidden=32",
    "model.head_bottleneck=16",
    "model.head_prototypes=64",
    "data.batch_size=8",
    "optim.lr=0.01",
    "warmup.epochs=2",
    "affinity.epochs=2",
    "affinity.k=5",
    "affinity.memory=64",
    "affinity.negatives=32",
    "clustering.n_init=5",
    "selection.n_init=3",
    "selection.keep=trained",
    "tensorboard=false",
)
# One stage without validation, because streaming starts worker processes each time it reads.
STREAMED = (*SETTINGS, "data.store=stream", "affinity.epochs=0", "selection.by=last")


# -- faults, injected in the process -----------------------------------------------------------------------


def fill_the_disk(size):
    """From now on no file can grow beyond ``size`` bytes, which fails as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size or 4096), int(size or 4096)))


def kill_while_writing(path_end):
    """Die with a file half-written."""
    from promptcal.runtime import files

    flush = files.flush

    def half_then_die(path):
        if path_end in path.name and files.is_temporary(path):
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        flush(path)

    files.flush = half_then_die


def remove(path):
    Path(path).unlink()


def truncate(path):
    os.truncate(path, Path(path).stat().st_size // 2)


def change(path):
    with Image.open(path) as image:
        other = image.rotate(180)
    other.save(path)


def spoil_the_gradient(_):
    """A step whose gradient is not finite, though its loss is."""
    import torch

    from promptcal.training.loop import Loop

    step = Loop.step

    def spoilt(self, *given):
        handles = [p.register_hook(lambda g: torch.full_like(g, torch.inf)) for p in self.parameters.values()]
        step(self, *given)
        for handle in handles:
            handle.remove()

    Loop.step = spoilt


def receive(names):
    """Signals, one while the one before is handled."""
    first, *others = names.split()
    try:
        signal.raise_signal(signal.Signals[first])
    finally:
        for name in others:
            signal.raise_signal(signal.Signals[name])


def receive_in_destructor(name):
    class Old:
        def __del__(self):
            receive(name)

    Old()


def receive_in_c(name):
    """Code in C that fails for any reason may raise an exception of its own."""
    try:
        receive(name)
    except KeyboardInterrupt:
        error = ImportError("the module failed to import")
    error.__context__ = None
    raise error


_DISK = (fill_the_disk, kill_while_writing, remove, truncate, change)
_SIGNALS = (receive, receive_in_destructor, receive_in_c)
FAULTS = {function.__name__: function for function in (*_DISK, spoil_the_gradient, *_SIGNALS)}


@dataclass(frozen=True)
class Fault:
    """``what`` happens when the process enters ``phase`` for the ``nth`` time."""

    phase: str
    what: str
    argument: str = ""
    nth: int = 1


# -- the process --------------------------------------------------------------------------------------------------


def _child(arguments, log, fault):
    """Run `promptcal ARGUMENTS`; log its phases and its output to files."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)  # the server uses another one
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    import torch

    torch.set_num_threads(1)
    warnings.resetwarnings()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    words = os.open(f"{log}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(words, 1)
    os.dup2(words, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    for phase in PHASES:
        _announce(phase, descriptor, fault if fault is not None and fault.phase == phase else None)
    if fault is not None and fault.phase in STAGES:
        _announce(fault.phase, os.open(os.devnull, os.O_WRONLY), fault)
    from promptcal import cli

    sys.argv = ["promptcal", *arguments]
    cli.main()


def _announce(phase, descriptor, fault):
    module, owner, name = (PHASES | STAGES)[phase]
    __import__(module)
    holder = sys.modules[module] if owner is None else getattr(sys.modules[module], owner)
    original = getattr(holder, name)
    entered = 0

    def announced(*given, **named):
        nonlocal entered
        entered += 1
        _say(descriptor, phase, "in")
        if fault is not None and fault.nth == entered:
            FAULTS[fault.what](fault.argument)
        result = original(*given, **named)
        _say(descriptor, phase, "out")
        return result

    setattr(holder, name, announced)


def _say(descriptor, phase, side):
    try:
        os.write(descriptor, (json.dumps([phase, side, time.monotonic()]) + "\n").encode())
    except OSError as error:
        if error.errno != errno.EFBIG:  # the log is a file as well
            raise


def decode_endlessly(folder, pid_file):
    """Read images in worker processes in an endless loop, and write the process IDs of the workers to a file."""
    from promptcal.data import ImageSet
    from promptcal.data.store import decoded
    from promptcal.runtime.files import write_text

    images = ImageSet.of(folder)
    while True:
        for _ in decoded(images, 8, processes=True):
            workers = [child.pid for child in multiprocessing.active_children()]
            write_text(Path(pid_file), " ".join(map(str, workers)) + "\n")


def start_decoding(folder, pid_file):
    process = _SERVER.Process(target=decode_endlessly, args=(str(folder), str(pid_file)))
    process.start()
    return process


def is_running(number):
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


class Process:
    """A running `promptcal` command."""

    def __init__(self, arguments, log, fault=None):
        self.log = Path(log)
        self.process = _SERVER.Process(target=_child, args=(list(map(str, arguments)), str(log), fault))
        self.process.start()

    def events(self):
        """(phase, in or out, time), as far as it has come."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, phase, nth=1, timeout=120.0):
        """Wait until it has entered a phase ``nth`` times; False if it ended before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if sum(e[:2] == [phase, "in"] for e in self.events()) >= nth:
                return True
            if not self.process.is_alive():
                return False
            time.sleep(0.002)
        raise TimeoutError(f"no {phase} within {timeout} s: {self.words()}")

    def send(self, number):
        with suppress(ProcessLookupError):  # it may have ended
            os.kill(self.process.pid, number)

    def end(self, timeout=120.0):
        """Exit code (negative: the signal that killed it) and its output."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"it did not end within {timeout} s: {self.words()}")
        return self.process.exitcode, self.words()

    def words(self):
        file = Path(f"{self.log}.txt")
        return file.read_text() if file.exists() else ""


def leftovers(folder):
    """Temporary files that were not removed."""
    return list(Path(folder).rglob(".*.tmp"))
