"""An open run: its images, the labels that the user gives them, and the messages to its pages."""

import os
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from promptcal.app.actions import Action, ImportLabels
from promptcal.app.label_state import LabelState, changed_images
from promptcal.app.label_store import FILE_NAME, LabelStore, digest_of
from promptcal.app.live_events import Events
from promptcal.app.packing import packed
from promptcal.app.pictures import Pictures
from promptcal.app.side_process import SideProcess
from promptcal.errors import RunError
from promptcal.report.array_files import read_if_newer
from promptcal.run.assignments import Assignments
from promptcal.run.stored_run import StoredRun
from promptcal.runtime import files, locking

_KEPT_STATES = 50  # to undo without applying all actions again


class Workspace:
    """One run that is open. Its methods can be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = StoredRun(path, warn_if_unfinished=False)
        self.assignments: Assignments = self.run.assignments()
        self.pictures = Pictures(self.run, self.assignments.paths)
        self.events = Events()
        self.opened = secrets.token_hex(8)  # a page of an earlier opening has to load everything again
        former = frozenset(self.run.info.former_names)
        self._base = replace(LabelState.of(self.assignments), former_names=former)
        self._resources = ExitStack()
        self._lock = threading.RLock()
        try:
            self._resources.enter_context(_lock_labels(path))
            self.store, self.carried_over = open_store(path, self.assignments)
            self._resources.callback(self.store.close)
            self._state = self.store.replay(self._base)
        except BaseException:
            self._resources.close()
            raise
        self._earlier: deque[LabelState] = deque(maxlen=_KEPT_STATES)
        self.computer = SideProcess()  # of what a user waits for
        self._attention_sheet: bytes | None = None
        self._page_computer = SideProcess()  # of pages, which may take minutes
        self._version = 0
        self._stamp = self._info_stamp()

    def close(self) -> None:
        self.events.end()
        self.computer.close()
        self._page_computer.close()
        self._resources.close()

    @property
    def embedded_run(self) -> Path:
        """The run whose embeddings are used: the one whose fit was accepted last."""
        return self.path if self._state.run is None else Path(self._state.run)

    def map(self) -> tuple[np.ndarray, np.ndarray]:
        """Images, and their coordinates: of the stored map, or of a new one, which is then stored."""
        directory = self.run.directory
        stored = read_if_newer(directory.map_file, directory.embeddings_file, "images", "coordinates")
        if stored is not None and is_map(stored[0], stored[1], len(self.assignments)):
            return stored[0], stored[1]
        images, coordinates = self._page_computer.call(
            "live_pages.embedding_map", str(self.path), on_progress=self._progress_sender("computing the map")
        )
        return images, coordinates

    def report_pages(self) -> str:
        """The data of the report's pages for the categories as they are now, as JSON."""
        data, self._attention_sheet = self._page_computer.call(
            "live_pages.report_pages",
            str(self.embedded_run),
            self._state,
            on_progress=self._progress_sender("computing the pages"),
        )
        return str(data)

    def _progress_sender(self, step: str) -> Callable[[int, int], None]:
        """Sends the progress of a step to the pages."""
        return lambda done, total: self.events.send("computing", {"step": step, "done": done, "total": total})

    @property
    def attention_sheet(self) -> bytes | None:
        """The pictures of the attention page, after `report_pages`."""
        return self._attention_sheet

    def page_names(self) -> list[str]:
        """The pages of the report that this run has."""
        directory = self.run.directory
        wanted = {
            "overview": True,
            "categories": True,
            "changes": directory.changes_file.is_file(),
            "labels": bool((self._state.labels >= 0).any()),
            "confusion": directory.truth_file.is_file(),
            "training": directory.metrics_file.is_file(),
            "neighbours": len(self._state) > 1,
            "attention": directory.examples_file.is_file(),
        }
        return [name for name, is_there in wanted.items() if is_there]

    @property
    def state(self) -> LabelState:
        return self._state

    @property
    def version(self) -> int:
        """Counts the changes since the run was opened."""
        return self._version

    def has_changed_on_disk(self) -> bool:
        """Whether a fit or `promptcal name` has written another result since the run was opened."""
        return self._info_stamp() != self._stamp

    def _info_stamp(self) -> tuple[int, int]:
        try:
            found = os.stat(self.run.directory.info_file)
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def notices(self) -> list[str]:
        """What the user should know about this run."""
        found = []
        if self.run.is_first_result:
            found.append(
                "Training is not finished. This is the first result, from before training. Your labels are kept when "
                "the final result is there."
            )
        missing, looked_at = self.pictures.n_missing()
        if missing:
            share = "The" if missing == looked_at else f"About {100 * missing // looked_at} % of the"
            found.append(
                f"{share} image files are not in {self.run.info.folder} any more. Stored thumbnails are shown. "
                "Labelling and export work; a new fit needs the files."
            )
        if self.carried_over:
            found.append(self.carried_over)
        return found

    def act(self, action: Action) -> dict[str, Any]:
        """Apply an action, commit it, tell all pages, and return what changed."""
        with self._lock:
            after = action.apply(self._state)
            self.store.append(action, action.title(after))
            self._earlier.append(self._state)
            return self._move_to(after)

    def undo(self) -> dict[str, Any] | None:
        """None if there is nothing to undo."""

        def before() -> LabelState:
            return self._earlier.pop() if self._earlier else self.store.replay(self._base)

        return self._step(self.store.undo, before)

    def redo(self) -> dict[str, Any] | None:
        def after() -> LabelState:
            self._earlier.append(self._state)
            return self.store.replay(self._base)

        return self._step(self.store.redo, after)

    def _step(self, mark: Callable[[], Any], state: Callable[[], LabelState]) -> dict[str, Any] | None:
        with self._lock:
            return None if mark() is None else self._move_to(state())

    def _move_to(self, after: LabelState) -> dict[str, Any]:
        before, self._state = self._state, after
        self._version += 1
        images = changed_images(before, after)
        change = {
            "previous": self._version - 1,
            "images": packed(images, "<u4"),
            **_columns(after, images),
            **self._small_parts(),
        }
        self.events.send("change", change)
        return change

    def _small_parts(self) -> dict[str, Any]:
        undo, redo = self.store.next_titles()
        return {"version": self._version, "categories": category_records(self._state), "undo": undo, "redo": redo}

    def snapshot(self) -> dict[str, Any]:
        """Everything that actions change."""
        with self._lock:
            state, parts = self._state, self._small_parts()
        stability = state.predictions.stability
        return {
            **parts,
            **_columns(state, np.arange(len(state))),
            "stability": None if stability is None else packed(stability, "<f4"),
            "run": state.run,
        }


def is_map(images: np.ndarray, coordinates: np.ndarray, n_images: int) -> bool:
    """Whether a stored map can be shown: it may be damaged, or untrusted."""
    if images.ndim != 1 or images.dtype.kind not in "iu" or coordinates.shape != (len(images), 2):
        return False
    is_finite = coordinates.dtype.kind == "f" and bool(np.isfinite(coordinates).all())
    return is_finite and bool(((images >= 0) & (images < n_images)).all()) and len(np.unique(images)) == len(images)


def category_records(state: LabelState) -> list[dict[str, Any]]:
    return [
        {"name": c.name, "known": c.known, "confirmed": c.confirmed, "mergedInto": c.merged_into}
        for c in state.categories
    ]


def _columns(state: LabelState, images: np.ndarray) -> dict[str, str]:
    found = state.predictions
    return {
        "category": packed(state.category[images], "<i4"),
        "status": packed(state.status[images], "u1"),
        "confidence": packed(found.confidence[images], "<f4"),
        "second": packed(found.second[images], "<i4"),
        "secondConfidence": packed(found.second_confidence[images], "<f4"),
    }


def _lock_labels(path: Path) -> Any:
    stack = ExitStack()
    try:
        stack.enter_context(locking.locked(path / ".labels.lock", f"the labels of {path}"))
    except RunError as error:
        raise RunError(
            f"{error}; only one server can change them".replace(", or choose another --output", "")
        ) from error
    except OSError as error:
        raise RunError(
            f"{path} cannot be written to ({error.strerror}), so labels could not be saved; make it writable, or copy "
            "the run (its report.html works without a server)"
        ) from error
    return stack


def open_store(path: Path, found: Assignments) -> tuple[LabelStore, str]:
    """The store of a run. If the run has another result than when its labels were given, they are given to the images
    of the new result by their paths, and the old store is kept; the text then says so."""
    file = path / FILE_NAME
    store = LabelStore(file)
    if store.is_empty:
        store.begin(found)
        return store, ""
    if store.digest == digest_of(found):
        return store, ""
    labels = store.labels()
    store.close()
    number = next(n for n in range(1, 10_000) if not (path / f"labels-{n}.sqlite").exists())
    kept = path / f"labels-{number}.sqlite"
    files.copy_file(file, kept)
    position = {name: i for i, name in enumerate(found.paths)}
    given = {position[name]: label for name, label in labels.items() if name in position}

    with tempfile.TemporaryDirectory() as folder:  # in the run, another command could take it for a leftover
        new = Path(folder) / FILE_NAME
        fresh = LabelStore(new)
        fresh.begin(found)
        if given:
            action = ImportLabels(source="the earlier result", labels=given)
            fresh.append(action, action.title(action.apply(LabelState.of(found))))
        fresh.close()
        files.copy_file(new, file)
    lost = len(labels) - len(given)
    missing = f" {lost:,} of them are of images that it does not have." if lost else ""
    return LabelStore(file), (
        f"The run has a new result since you labelled it. Your {len(labels):,} labels were carried over.{missing} The "
        f"actions before that are kept in {kept.name}."
    )
