"""The run directory: names of its files, its state, and its lock."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from promptcal.errors import PromptCALError, RunError
from promptcal.methods import read_config
from promptcal.run.info import RunInfo
from promptcal.runtime import files, locking
from promptcal.runtime.json_model import JSONModel
from promptcal.runtime.reading import MAX_YAML, is_special, read_bytes

if TYPE_CHECKING:
    from promptcal.config import Config
    from promptcal.run.results import RunResults

_WRITTEN_BEFORE_RUN_JSON = {
    ".lock",
    "config.yaml",
    "skipped.csv",
    "class-count.png",
    "class-count.csv",
    "class-count.json",
}


class HeldOut(JSONModel):
    """`held_out.json`: names of the images whose labels were held out, and of others that no training has used."""

    paths: list[str]
    unused: list[str] = Field(default_factory=list)


class RunDirectory:
    """Names of the files in a run directory, and its state."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.lock_file = self.path / ".lock"
        self.info_file = self.path / "run.json"
        self.config_file = self.path / "config.yaml"
        self.model_file = self.path / "model.safetensors"
        self.centroids_file = self.path / "centroids.safetensors"
        self.assignments_file = self.path / "assignments.csv"
        self.calibration_file = self.path / "calibration.json"
        self.held_out_file = self.path / "held_out.json"
        self.categories_file = self.path / "categories.csv"
        self.class_count_file = self.path / "class-count.json"
        self.changes_file = self.path / "changes.csv"
        self.changes_summary_file = self.path / "changes.json"
        self.assignments_parquet_file = self.path / "assignments.parquet"
        self.embeddings_file = self.path / "embeddings.npy"
        self.results_file = self.path / "results.json"
        self.evaluation_file = self.path / "evaluation.json"
        self.skipped_file = self.path / "skipped.csv"
        self.checkpoints_folder = self.path / "checkpoints"
        self.sheets_folder = self.path / "sheets"
        self.thumbnails_folder = self.path / "thumbnails"
        self.examples_file = self.path / "thumbnails" / "examples.npz"
        self.truth_file = self.path / "truth.csv"
        self.metrics_file = self.path / "metrics.jsonl"
        self.map_file = self.path / "map.npz"
        self.attention_file = self.path / "attention.npz"
        self.report_file = self.path / "report.html"
        self.figures_folder = self.path / "figures"
        self.shards_folder = self.path / "assignments"
        self.pending_folder = self.path / "pending"
        self.original_folder = self.path / "before-naming"

    def exists(self) -> bool:
        return self.info_file.is_file()

    def info(self) -> RunInfo:
        if not self.exists():
            raise RunError(f"{self.path} is not a run directory (it has no run.json); give the --output of a fit")
        return RunInfo.read(self.info_file)

    def update_info(self, **changes: Any) -> None:
        """Write `run.json` again with some fields changed."""
        RunInfo.model_validate({**self.info().model_dump(), **changes}).write(self.info_file)

    def results(self) -> "RunResults | None":
        """What has been measured so far; None before the first stage is finished."""
        from promptcal.run.results import RunResults

        return RunResults.read(self.results_file) if self.results_file.is_file() else None

    def add_phase(self, name: str, seconds: float) -> None:
        """Add a phase that ended after the results were written."""
        with self.locked():
            results = self.results()
            if results is not None and results.phases:
                phases = {**results.phases, name: results.phases.get(name, 0.0) + seconds}
                results.timed(phases).write(self.results_file)

    def with_first_result(self, results: "RunResults") -> "RunResults":
        """``results`` with what is stored of the first result, whose files stay."""
        stored = self.results()
        if stored is None:
            return results
        kept = ("categories", "automatic_merges", "changes", "stability", "weights")
        return results.model_copy(update={name: getattr(stored, name) for name in kept})

    def config(self) -> "Config":
        """The settings of the run; a file that was truncated is rejected."""
        try:
            return read_config(read_bytes(self.config_file, MAX_YAML).decode("utf-8"))
        except (OSError, ValueError, PromptCALError) as error:
            raise RunError(f"{self.config_file} cannot be read ({error}); fit again with --overwrite") from error

    def held_out(self) -> "HeldOut":
        return HeldOut.read(self.held_out_file)

    def write_truth(self, names: Sequence[str], truth: Sequence[str | None]) -> None:
        rows = ((name, label) for name, label in zip(names, truth, strict=True) if label is not None)
        files.write_rows(self.truth_file, ["path", "label"], rows)

    def check_links(self) -> None:
        """Reject links that would make a later command write outside the run directory, and pipes and devices, from
        which a command would read without an end.

        Other linked files are replaced, and what they link to is not changed.
        """
        links = []
        try:
            for place in files.entries_below(self.path):
                if place.is_symlink():
                    links.append(place)
                if is_special(place):
                    raise RunError(f"{place} in the run is a pipe, a device or a link to one; remove it")
        except OSError as error:
            raise RunError(f"{error.filename} in the run cannot be read ({error.strerror}); remove it") from error
        home = os.path.realpath(self.path)
        for place in links:
            is_followed = place.is_dir() or place == self.metrics_file
            if is_followed and not Path(os.path.realpath(place)).is_relative_to(home):
                raise RunError(f"{place} is a link to a place outside the run; replace it by what it links to")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the directory; temporary files of a killed process are removed."""
        existed = self.path.is_dir()
        with ExitStack() as lock:
            try:
                files.make_folder(self.path)
                lock.enter_context(locking.locked(self.lock_file, str(self.path)))
                files.remove_leftovers(self.path)
            except OSError as error:
                reason = error.strerror or str(error)
                raise RunError(f"the output {self.path} cannot be written to ({reason}); choose another") from error
            try:
                yield
            except (PromptCALError, OSError):
                if not existed and [*self.path.iterdir()] == [self.lock_file]:
                    files.remove_folder(self.path)  # nothing was written, so leave nothing behind
                raise

    def is_unbegun(self) -> bool:
        """Whether a fit was killed here before it wrote run.json, or while it removed a previous run."""
        if self.exists():
            return self.info().status == "discarded"
        return self.lock_file.exists() and all(
            entry.name in _WRITTEN_BEFORE_RUN_JSON or files.is_temporary(entry) for entry in self.path.iterdir()
        )

    def check_free(self, *, resume: bool, overwrite: bool) -> bool:
        """Reject an output that would destroy something, before anything is computed.

        Returns whether there is a run to resume: a fit that was killed before it wrote run.json starts again.
        """
        if resume and overwrite:
            raise RunError("--resume continues a run and --overwrite discards it; give only one of them")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"the output {self.path} is a file; give a folder")
        if overwrite and self.exists():
            return False
        if self.path.is_dir() and self.is_unbegun():
            return False
        if resume:
            if not self.exists():
                raise RunError(f"there is no run in {self.path} to resume; remove --resume to start one")
            if self.info().status == "finished":
                raise RunError(
                    f"the run in {self.path} is finished; there is nothing to resume "
                    f"(promptcal report {self.path} writes its report again)"
                )
            self.check_links()
            return True
        if self.exists():
            finished = self.info().status == "finished"
            remedy = "" if finished else " add --resume to continue it,"
            state = "a finished" if finished else "an unfinished"
            raise RunError(
                f"{self.path} holds {state} run;{remedy} add --overwrite to discard it, or choose another --output"
            )
        if self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(f"the folder {self.path} is not empty and not a run; choose another --output")
        return False

    def clear(self) -> None:
        """Remove a previous run. If the process is killed meanwhile, the run stays marked as discarded."""
        if self.exists():
            RunInfo(status="discarded").write(self.info_file)
        for entry in [*self.path.iterdir()]:
            if entry.is_dir() and not entry.is_symlink():
                files.remove_folder(entry)
            elif entry not in (self.lock_file, self.info_file):
                entry.unlink()
        self.info_file.unlink(missing_ok=True)

    def verify_checksum(self, path: Path, info: RunInfo | None = None) -> None:
        """Reject a result that changed since the fit wrote it, or since ``info`` was read."""
        info = self.info() if info is None else info
        expected = info.sha256.get(path.name)
        if expected is None or expected == files.file_digest(path):
            return
        if self.pending_folder.is_dir() or self.info() != info:
            raise RunError(
                f"{self.path} was changed by another command after it was opened; open it again (run the command again)"
            )
        if info.status == "training":
            raise RunError(f"the fit of {self.path} replaces {path.name}; let the fit end, or run it with --resume")
        raise RunError(f"{path} changed since the fit wrote it (checksum mismatch); fit again, or restore the file")
