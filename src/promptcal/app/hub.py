"""The runs that a server shows: one run, all runs of a folder, or the run of a first fit."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcal.app.first_fit import FirstFit, FirstFitRequest
from promptcal.app.label_store import FILE_NAME
from promptcal.app.refit_jobs import RefitJobs
from promptcal.app.workspace import Workspace
from promptcal.errors import PromptCALError, RunError
from promptcal.run.directory import RunDirectory

_MOST_RUNS = 1000


@dataclass(frozen=True)
class RunListing:
    """A run in the list: its key in addresses, and what can be said without opening it. ``problem`` is "" if it can be
    opened."""

    key: str
    name: str
    status: str
    n_images: int
    n_categories: int
    has_labels: bool
    problem: str


class Hub:
    """The runs by key, opened when they are first used."""

    def __init__(self, path: Path, first_fit: FirstFitRequest | None = None) -> None:
        """``first_fit`` is given if ``path`` is a folder of images, not a run."""
        self.path = path
        self.is_folder = first_fit is None and not RunDirectory(path).exists()
        shown = path if first_fit is None else first_fit.output
        self._paths = {shown.absolute().name or "run": shown}
        if self.is_folder:
            self._paths = {found.name: found for found in find_runs(path)}
        self._open: dict[str, Workspace] = {}
        self._jobs: dict[str, RefitJobs] = {}
        self._lock = threading.Lock()
        self.first_fit = None if first_fit is None else FirstFit(first_fit)
        if self.first_fit is not None:
            self.first_fit.listeners.append(self._send_fit_status)

    @property
    def has_home(self) -> bool:
        """Whether there is a page above those of the runs: the list of runs, or the first fit."""
        return self.is_folder or self.first_fit is not None

    def keys(self) -> list[str]:
        """The runs there are now."""
        if self.is_folder:
            self._paths.update({found.name: found for found in find_runs(self.path)})
        return list(self._paths)

    def add(self, path: Path) -> str:
        """Show another run, and return its key."""
        key = path.absolute().name
        if self._paths.setdefault(key, path).absolute() != path.absolute():
            raise RunError(f"there are two runs called {key}; serve {path} on its own")
        return key

    def workspace(self, key: str) -> Workspace:
        """A `RunError` if there is no such run or if it cannot be opened."""
        with self._lock:
            if key not in self._open:
                if key not in self._paths and key not in self.keys():
                    raise RunError(f"there is no run called {key} here; go back to the list")
                self._open[key] = Workspace(self._paths[key])
            return self._open[key]

    def jobs(self, key: str) -> RefitJobs:
        """The refits of a run."""
        workspace = self.workspace(key)
        with self._lock:
            if key not in self._jobs:
                self._jobs[key] = RefitJobs(workspace)
            return self._jobs[key]

    def reopen(self, key: str) -> Workspace:
        """The run with its present result."""
        with self._lock:
            self._close(key)
        return self.workspace(key)

    def _send_fit_status(self, status: dict[str, Any]) -> None:
        """Send the status of the fit to the pages that label its first result, and say when it has another result."""
        for workspace in list(self._open.values()):
            workspace.events.send("fit", status)
            if status["phase"] == "finished" and workspace.has_changed_on_disk():
                workspace.events.send("changed", {})

    def _close(self, key: str) -> None:
        if key in self._jobs:
            self._jobs.pop(key).close()
        if key in self._open:
            self._open.pop(key).close()

    def listings(self) -> list[RunListing]:
        return [_listing(key, self._paths[key]) for key in self.keys()]

    def close(self) -> None:
        if self.first_fit is not None:
            self.first_fit.close()
        with self._lock:
            for key in list(self._open):
                self._close(key)


def find_runs(folder: Path) -> list[Path]:
    """The run directories in a folder, by name."""
    try:
        found = sorted(entry for entry in folder.iterdir() if RunDirectory(entry).exists())
    except OSError as error:
        raise RunError(
            f"{folder} cannot be read ({error.strerror}); give a run directory or a folder of runs"
        ) from error
    return found[:_MOST_RUNS]


def _listing(key: str, path: Path) -> RunListing:
    has_labels = (path / FILE_NAME).is_file()
    try:
        info = RunDirectory(path).info()
    except PromptCALError as error:
        return RunListing(key, path.name, "damaged", 0, 0, has_labels, str(error))
    problem = "" if info.has_result else "It has no result yet: its fit is running, or was interrupted (fit --resume)."
    return RunListing(key, path.name, info.status, info.n_images, len(info.categories), has_labels, problem)
