"""Refits in the background, one at a time: a quick one of the read-out, or `fit --from` in a separate process.

A refit ends in a proposal, which the user accepts (an action that can be undone) or discards.
"""

import shlex
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from promptcal.app.actions import AcceptRefit
from promptcal.app.fit_process import FitProcess
from promptcal.app.label_formats import to_csv
from promptcal.app.label_state import UNLABELLED, LabelState
from promptcal.app.label_store import Attempt
from promptcal.app.live_events import Pace
from promptcal.app.packing import packed
from promptcal.app.side_process import Cancelled
from promptcal.app.workspace import Workspace
from promptcal.errors import LabelError, PromptCALError, RunError, one_line, shorten
from promptcal.report.next_command import image_words, next_output
from promptcal.run.directory import RunDirectory
from promptcal.run.stored_run import StoredRun
from promptcal.runtime import files

Kind = Literal["quick", "fit"]
_MOST_MOVED = 5000  # images that the page is shown
# An untrusted run directory must not decide what is executed: only these words of its command are used.
_COMMANDS = ("fit", "benchmark")
_OPTIONS = {"--skip-unreadable": 0, "--truth": 1, "--root": 1, "--keep": 1, "--allow-long": 0}  # with their values


@dataclass(frozen=True)
class RefitStatus:
    """What a page shows of the refit that runs, or that is ready to be accepted."""

    phase: Literal["idle", "running", "ready"] = "idle"
    kind: Kind | None = None
    step: str = ""
    done: int = 0
    total: int = 0
    attempt: int | None = None
    message: str = ""


class RefitJobs:
    """The refits of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.RLock()
        self._status = RefitStatus()
        self._proposal: AcceptRefit | None = None
        self._process: FitProcess | None = None
        self._is_cancelled = threading.Event()
        self._pace = Pace()
        for attempt in workspace.store.attempts():  # of a server that was killed
            if attempt.status in ("running", "ready"):
                status = "finished" if _is_finished(attempt) else "interrupted"
                workspace.store.end_attempt(attempt.number, status, attempt.message)

    def record(self) -> dict[str, Any]:
        """The status, the proposal, and all attempts."""
        with self._lock:
            attempts = [vars(attempt) for attempt in reversed(self._workspace.store.attempts()[-50:])]
            after = self._after()
            moved = None if after is None else moved_images(self._workspace.state, after)
            return {**vars(self._status), "attempts": attempts, "moved": moved}

    def command(self) -> list[str]:
        """The command of a new fit, without `promptcal` before it."""
        workspace = self._workspace
        run = workspace.run
        if workspace.state.run is not None:  # labels.sqlite names it, which may be from somebody else
            run = StoredRun(workspace.state.run)
            if run.path.absolute().parent != workspace.path.absolute().parent:
                raise LabelError(
                    f"the refit that was accepted is in {run.path}, not beside this run; open it on its own: promptcal "
                    f"serve {run.path}"
                )
        words = checked_words(image_words(run))
        output = next_output(run.path.absolute())
        names = {category.name for category in (workspace.state.categories[c] for c in workspace.state.active)}
        number = ["--n-classes", str(len(names))] if names - set(run.names) and len(names) > len(run.names) else []
        labels = str(run.path.absolute() / f"labels-for-{output.name}.csv")
        options = ["--labels", labels, "--from", str(run.path.absolute()), "--output", str(output)]
        return [*words, *options, *number, *(["--allow-long"] if "--allow-long" not in words else [])]

    def start(self, kind: Kind) -> None:
        with self._lock:
            self._check_idle()
            if self._workspace.has_changed_on_disk():
                raise LabelError("the run has a new result; load it first (reload the page)")
            self._discard()
            command = self.command() if kind == "fit" else []
            output = command[command.index("--output") + 1] if command else None
            self._is_cancelled.clear()
            number = self._workspace.store.add_attempt(kind, output)
            self._set(RefitStatus("running", kind, "starting", attempt=number))
            work = (lambda: self._fit(command)) if kind == "fit" else self._quick
            threading.Thread(target=self._run, args=(number, work), daemon=True).start()

    def load(self, number: int) -> None:
        """Show the result of a fit that is finished, of an earlier session."""
        attempt = next((a for a in self._workspace.store.attempts() if a.number == number), None)
        if attempt is None or attempt.output is None or not _is_finished(attempt):
            raise LabelError("this attempt has no result; start it again")
        with self._lock:
            self._check_idle()
            self._discard()
            self._proposal = self._of_run(Path(attempt.output))
            self._set(RefitStatus("ready", "fit", attempt=number, message=self._summary()))

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled.set()
            if self._process is not None:
                self._process.cancel()

    def accept(self) -> dict[str, Any]:
        with self._lock:
            if self._proposal is None:
                raise LabelError("there is no refit to accept; start one")
            message = self._summary()
            change = self._workspace.act(self._proposal)
            if self._status.attempt is not None:
                self._workspace.store.end_attempt(self._status.attempt, "accepted", message)
            self._proposal = None
            self._set(RefitStatus())
            return change

    def discard(self) -> None:
        with self._lock:
            self._discard()
            self._set(RefitStatus())

    def close(self) -> None:
        """End a fit that is running; it can be resumed on the command line."""
        self.cancel()
        if (process := self._process) is not None:
            process.close()

    def _check_idle(self) -> None:
        if self._status.phase == "running":
            raise LabelError("a refit is running; wait for it, or cancel it")

    def _discard(self) -> None:
        if self._proposal is not None and self._status.attempt is not None:
            self._workspace.store.end_attempt(self._status.attempt, "discarded", self._summary())
        self._proposal = None

    def _set(self, status: RefitStatus) -> None:
        self._status = status
        self._workspace.events.send("refit", vars(status))

    def _progress(self, step: str, done: int, total: int) -> None:
        if self._pace.allows():
            with self._lock:
                self._set(replace(self._status, step=step, done=done, total=total))

    def _run(self, number: int, work: Callable[[], AcceptRefit]) -> None:
        status, message, proposal = "ready", "", None
        try:
            proposal = work()
        except Cancelled:
            status, message = "cancelled", "It was cancelled."
        except (PromptCALError, OSError) as error:
            status, message = "failed", one_line(error)
        with self._lock:
            self._process = None
            self._proposal = proposal
            message = message or self._summary()
            try:
                self._workspace.store.end_attempt(number, status, message)
            except PromptCALError as error:
                message = f"{message} {error}"
            if proposal is None:
                self._set(RefitStatus(message=message))
            else:
                self._set(replace(self._status, phase="ready", message=message))

    def _quick(self) -> AcceptRefit:
        workspace = self._workspace
        names, found = workspace.computer.call(
            "computations.quick_refit",
            str(workspace.path),
            str(workspace.embedded_run),
            workspace.state,
            on_progress=lambda done, total: self._progress("training the read-out", done, total),
            is_cancelled=self._is_cancelled.is_set,
        )
        return AcceptRefit.of(names, found, None)

    def _fit(self, command: list[str]) -> AcceptRefit:
        workspace = self._workspace
        labels = Path(command[command.index("--labels") + 1])
        output = Path(command[command.index("--output") + 1])
        files.write_text(labels, to_csv(workspace.assignments.paths, workspace.state.label_names()))
        process = FitProcess(command)
        with self._lock:
            self._process = process
            if self._is_cancelled.is_set():
                process.cancel()
        process.run(lambda progress: self._progress(*progress))
        return self._of_run(output)

    def _of_run(self, output: Path) -> AcceptRefit:
        found = StoredRun(output).assignments()
        if found.paths != self._workspace.assignments.paths:
            raise RunError(f"{output} has other images than this run; open it on its own: promptcal serve {output}")
        return AcceptRefit.of(found.names, LabelState.of(found).predictions, str(output))

    def _after(self) -> LabelState | None:
        return None if self._proposal is None else self._proposal.apply(self._workspace.state)

    def _summary(self) -> str:
        after = self._after()
        if after is None:
            return ""
        moved = int((after.category != self._workspace.state.category).sum())
        return f"{moved:,} of {len(after):,} images moved."


def moved_images(before: LabelState, after: LabelState) -> dict[str, Any]:
    """The images that a refit moves, the surest first, and how many go from where to where."""
    images = np.flatnonzero((before.category != after.category) & (before.status == UNLABELLED))
    images = images[np.argsort(-after.predictions.confidence[images], kind="stable")]
    pairs = Counter(zip(before.category[images].tolist(), after.category[images].tolist(), strict=True))
    names = [category.name for category in after.categories]
    return {
        "n": len(images),
        "flows": [[names[a], names[b], n] for (a, b), n in pairs.most_common(30)],
        "images": packed(images[:_MOST_MOVED], "<u4"),
        "to": packed(after.category[images[:_MOST_MOVED]], "<i4"),
        "names": names,
    }


def checked_words(words: list[str]) -> list[str]:
    """The words of a run's command, if they are nothing but its images and harmless options."""
    if not words:
        raise LabelError(
            "the images of this run were given in Python, so the app cannot read them again; export the labels and "
            "call promptcal.fit(..., start_from=run)"
        )
    rest, position = words[2:], 0
    is_known = words[0] in _COMMANDS and len(words) > 1 and not words[1].startswith("-")
    while is_known and position < len(rest):
        is_known = rest[position] in _OPTIONS
        position += 1 + _OPTIONS.get(rest[position], 0)
    if not is_known:
        raise LabelError(
            f"this run was made with options that the app does not repeat by itself; export the labels and run: "
            f"promptcal {shorten(shlex.join(words), 300)} --from RUN --labels FILE --output OUTPUT"
        )
    return words


def _is_finished(attempt: Attempt) -> bool:
    if attempt.output is None:
        return False
    directory = RunDirectory(attempt.output)
    try:
        return directory.exists() and directory.info().status == "finished"
    except PromptCALError:
        return False
