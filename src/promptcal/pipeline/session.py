"""The process that runs a fit: its device, its group, its lock, its clock, and how it stops."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from rich.console import Console

from promptcal.config import Config
from promptcal.errors import Interrupted, PromptCALError, PromptCALWarning, RunError
from promptcal.run.directory import RunDirectory
from promptcal.runtime import distributed
from promptcal.runtime.device import choose_device, choose_dtype, deterministic_mode, device_context
from promptcal.runtime.interrupts import StopRequest
from promptcal.runtime.phases import OTHER, PhaseClock
from promptcal.runtime.threads import warn_if_threads_spin
from promptcal.training.checkpoints import Checkpoints


class Session:
    """What every step of a fit uses. `active` holds the run directory's lock and listens for Ctrl-C.

    ``clock`` runs since the inputs were read; by default it begins now.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        console: Console,
        *,
        clock: PhaseClock | None = None,
        stop_after: float | None = None,
        verbose: bool = False,
    ) -> None:
        self.directory = directory
        self.console = console
        self.verbose = verbose
        self.group = distributed.group()
        self.device = choose_device(config.device)
        if self.device.type == "cpu":
            warn_if_threads_spin()
        self.dtype: torch.dtype = choose_dtype(config.precision, self.device)
        self.deterministic = config.deterministic
        self.clock = PhaseClock() if clock is None else clock
        self.checkpoints = Checkpoints(directory.checkpoints_folder, self.clock.phases, self.group)
        self.stop = StopRequest(
            self._say_stopping, None if stop_after is None else self.clock.started + 60 * stop_after
        )
        self.clock.before_phase = self.stop.check
        self.group.check(config.data.batch_size, self.device)
        self.clock.switch(OTHER)  # from here on every phase is named where it runs

    @contextmanager
    def active(self) -> Iterator[None]:
        with self.stop.listening():
            try:
                with (
                    self.group.locked_by_first(self.directory.locked()),
                    device_context(self.device, self.dtype),
                    deterministic_mode(self.deterministic),
                ):
                    yield
            except KeyboardInterrupt:
                message = "stopped; run the same command with --resume to continue"
                raise Interrupted(message + self._alternative(), self.stop.exit_code) from None
            except Interrupted as stopped:
                raise Interrupted(f"{stopped}{self._alternative()}", stopped.exit_code) from None
            except OSError as error:  # disk full, or disk gone
                how = "with --resume" if self.directory.exists() else "again"
                raise RunError(
                    f"{_describe(error)}; {self.checkpoints.describe_last()}: fix this, then run the same command {how}"
                ) from error

    def _alternative(self) -> str:
        """What else can be done with a run that was stopped."""
        with suppress(PromptCALError, OSError):
            if self.directory.info().status == "training":
                return ", or keep the first result, which `promptcal name`, export and predict use as it is"
        return ""

    def _say_stopping(self) -> None:
        self.console.print("Stopping after this step; press Ctrl-C again to stop at once.")


def say(message: str, session: Session) -> None:
    """Print a sentence beside the progress bars; names in it are not markup."""
    session.console.print(message, markup=False, highlight=False, soft_wrap=True)


def warn(message: str) -> None:
    warnings.warn(message, PromptCALWarning, stacklevel=2)


def _describe(error: OSError) -> str:
    """What went wrong and with which file, without the error number."""
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{reason}: {error.filename}"
