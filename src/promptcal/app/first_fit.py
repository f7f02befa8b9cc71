"""The first fit of a folder of images, from the browser: it is checked, the user is asked for what is missing, and the
fit runs in a separate process. Its first result can be labelled while it trains."""

import shlex
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from promptcal.app.fit_process import FitProcess, Progress
from promptcal.app.live_events import Events, Pace
from promptcal.app.side_process import Cancelled, SideProcess
from promptcal.data.images import ImageSet
from promptcal.data.labels import read_labels
from promptcal.errors import LabelError, PromptCALError, RunError, one_line
from promptcal.run.directory import RunDirectory
from promptcal.runtime import files
from promptcal.runtime.json_model import JSONModel, StrictModel
from promptcal.runtime.user_warnings import collected_warnings

_MOST_MESSAGES = 12


@dataclass(frozen=True)
class FirstFitRequest:
    """What the command line gives. ``labels`` and ``n_classes`` may be missing: the page asks for them."""

    images: Path
    labels: Path | None
    n_classes: int | Literal["auto"] | None
    output: Path
    settings: tuple[str, ...] = ()


class StartRequest(StrictModel):
    """What the user chose on the page."""

    n_classes: int | Literal["auto"]
    quick: bool
    skip_unreadable: bool


@dataclass(frozen=True)
class FirstFitStatus:
    """What the page shows. ``is_checked``: every image was read; before that, its report has only names and labels.
    ``has_result``: the run can be labelled. ``can_resume``: there is an unfinished run."""

    phase: Literal["checking", "asking", "fitting", "finished"]
    step: str = ""
    done: int = 0
    total: int = 0
    problem: str = ""
    is_checked: bool = False
    has_result: bool = False
    can_resume: bool = False


class _Started(JSONModel):
    """The options of a fit that was started."""

    remedy: ClassVar[str] = "run the command of the fit again with --resume"

    n_classes: int | Literal["auto"]
    quick: bool
    skip_unreadable: bool
    labels: str | None
    settings: list[str]


class FirstFit:
    """The fit of a request. ``listeners`` are called with every status, besides the pages that listen to ``events``."""

    def __init__(self, request: FirstFitRequest) -> None:
        self.events = Events()
        self.directory = RunDirectory(request.output)
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self._request = request
        self._lock = threading.RLock()
        self._computer = SideProcess()
        self._process: FitProcess | None = None
        self._report: dict[str, Any] | None = None
        self._messages: list[str] = []
        self._sent_labels: Path | None = None
        self._pace = Pace()
        self._check_number = 0
        self._status = self._on_disk(FirstFitStatus("asking"))
        if self._status.phase == "asking" and not self._status.can_resume:
            self.check()

    @property
    def key(self) -> str:
        return self.directory.path.absolute().name

    def record(self) -> dict[str, Any]:
        """Everything that the page shows."""
        request = self._request
        with self._lock:
            return {
                "folder": str(request.images),
                "labels": "" if request.labels is None else str(request.labels),
                "nClasses": request.n_classes,
                "output": str(request.output),
                "settings": list(request.settings),
                "key": self.key,
                "report": self._report,
                **self.status(),
            }

    def status(self) -> dict[str, Any]:
        """The part of the record that changes while the fit runs."""
        with self._lock:
            return {**vars(self._status), "messages": self._messages[-_MOST_MESSAGES:]}

    def check(self, problem: str = "") -> None:
        """List the images and read the labels, then read every image, in the background. ``problem`` is that of a fit
        before."""
        with self._lock:
            self._check_number += 1
            self._report = None
            self._set(FirstFitStatus("checking", "listing the images"))
            threading.Thread(target=self._check, args=(self._check_number, problem), daemon=True).start()

    def use_labels(self, content: bytes) -> None:
        """Store a label file that the page sends, beside the run, and check the images with it."""
        with self._lock:
            if self._status.phase == "fitting":
                raise LabelError("the fit is running; cancel it first, or label its first result")
            if self._sent_labels is None:
                self._sent_labels = _free_place(self._request.output.with_name(f"labels-for-{self.key}.csv"))
            files.write_bytes(self._sent_labels, content)
            self._request = replace(self._request, labels=self._sent_labels)
            self.check()

    def start(self, chosen: StartRequest) -> None:
        started = _Started(**chosen.model_dump(), labels=self._labels, settings=list(self._request.settings))
        started.write(self._started_file)
        self._begin(self._command(started))

    def resume(self) -> None:
        """Continue the unfinished run, with the options that it was started with.

        They are in a file that may be from somebody else, so only those of the page are used: settings can name files
        to write and models to download, and have to be those of this server.
        """
        if not self._status.can_resume:
            raise RunError("there is no unfinished run to continue; start the fit")
        if not self._started_file.is_file():
            raise RunError(
                f"the options of this fit are not known ({self._started_file.name} is missing); run its command again "
                "with --resume"
            )
        started = _Started.read(self._started_file)
        if started.settings != list(self._request.settings):
            given = shlex.join(word for setting in started.settings for word in ("--set", setting)) or "no --set"
            raise RunError(f"this fit was started with other settings; start promptcal serve with {given}")
        self._begin([*self._command(started), "--resume"])

    @property
    def _labels(self) -> str | None:
        return None if self._request.labels is None else str(self._request.labels)

    def _command(self, started: "_Started") -> list[str]:
        """The command of a fit, without `promptcal` before it."""
        request = self._request
        command = ["fit", str(request.images), "--output", str(request.output)]
        command += [] if started.labels is None else [f"--labels={started.labels}"]
        command += [f"--n-classes={started.n_classes}", "--allow-long"]
        command += ["--quick"] if started.quick else []
        command += ["--skip-unreadable"] if started.skip_unreadable else []
        return [*command, *(f"--set={setting}" for setting in started.settings)]

    def cancel(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.cancel()

    def close(self) -> None:
        """End a check or a fit; the fit can be continued later."""
        self._computer.close()
        if (process := self._process) is not None:
            process.close()
        self.events.end()

    @property
    def _started_file(self) -> Path:
        """Keeps the options of the fit until it is finished, so that it can be continued after a restart."""
        output = self._request.output
        return output.with_name(f".{output.name}.json")

    def _begin(self, command: list[str]) -> None:
        with self._lock:
            if self._status.phase in ("fitting", "checking"):
                raise LabelError("the fit is still running, or the images are being listed; wait for it, or cancel it")
            self._check_number += 1  # ends a check: the fit reads every image itself
            self._messages = []
            self._process = FitProcess(command)
            self._set(replace(self._status, phase="fitting", step="starting", done=0, total=0, problem=""))
            threading.Thread(target=self._fit, args=(self._process,), daemon=True).start()

    def _set(self, status: FirstFitStatus) -> None:
        self._status = status
        record = self.status()
        self.events.send("fit", record)
        for listener in self.listeners:
            listener(record)

    def _progress(self, step: str, done: int, total: int) -> None:
        if not self._pace.allows(always=not total):
            return
        with self._lock:
            changed = replace(self._status, step=step, done=done, total=total)
            self._set(changed if changed.has_result else self._on_disk(changed))

    def _check(self, number: int, problem: str) -> None:
        request = self._request
        labels = None if request.labels is None else str(request.labels)

        def update(report: dict[str, Any] | None, status: FirstFitStatus) -> None:
            with self._lock:
                if number == self._check_number:
                    self._report = report
                    self._set(self._on_disk(status))

        def progress(done: int, total: int) -> None:
            with self._lock:
                if number == self._check_number:
                    self._progress("reading every image", done, total)

        try:
            listed = list_folder(request.images, request.labels)
            update(listed, FirstFitStatus("asking", "reading every image", 0, listed["images"], problem))
            report = self._computer.call(
                "folder_check.check_folder",
                str(request.images),
                labels,
                on_progress=progress,
                is_cancelled=lambda: number != self._check_number,
            )
            update(report, FirstFitStatus("asking", problem=problem, is_checked=True))
        except Cancelled:
            return
        except PromptCALError as error:
            update(None, FirstFitStatus("asking", problem=one_line(error)))

    def _fit(self, process: FitProcess) -> None:
        problem = ""

        def show(progress: Progress) -> None:
            if not progress.total:
                self._messages.append(progress.step)
            self._progress(*progress)

        try:
            process.run(show)
        except Cancelled:
            problem = "The fit was cancelled."
        except (PromptCALError, OSError) as error:
            problem = one_line(error)
        with self._lock:
            self._process = None
            is_checked = self._status.is_checked
            self._set(self._on_disk(FirstFitStatus("asking", problem=problem, is_checked=is_checked)))
            if self._status.phase == "finished":
                self._started_file.unlink(missing_ok=True)
            elif not is_checked and not self._status.can_resume:
                self.check(problem)  # the fit has ended the check

    def _on_disk(self, status: FirstFitStatus) -> FirstFitStatus:
        """The status with what the run directory says."""
        if not self.directory.exists():
            return status
        try:
            info = self.directory.info()
        except PromptCALError as error:
            return replace(status, problem=status.problem or one_line(error))
        if info.status == "finished" and status.phase != "fitting":
            return replace(status, phase="finished", has_result=True)
        return replace(status, has_result=info.has_result, can_resume=info.status in ("running", "training"))


def list_folder(folder: Path, labels: Path | None) -> dict[str, Any]:
    """What can be said of a folder before an image is read; the other fields are those of `folder_check`."""
    images = ImageSet.of(folder)
    with collected_warnings() as warnings:
        counts = Counter(read_labels(labels, images))
    unlabelled = counts.pop(None, 0)
    return {
        "images": len(images),
        "classes": sorted(counts.items(), key=lambda item: -item[1]),
        "unlabelled": unlabelled,
        "unreadable": 0,
        "problems": [],
        "warnings": label_findings(warnings),
    }


def label_findings(warnings: list[str]) -> list[dict[str, Any]]:
    """Warnings of a label file, as findings of the page."""
    return [{"what": text, "amount": "", "cases": [], "left": 0} for text in warnings]


def _free_place(place: Path) -> Path:
    """This file, or one with a number if it exists already."""
    names = (place.with_stem(f"{place.stem}-{n}") for n in range(2, 10_000))
    return place if not place.exists() else next(other for other in names if not other.exists())
