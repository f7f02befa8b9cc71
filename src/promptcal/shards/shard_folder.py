"""A folder of output shards: `plan.json`, `shards/NAME.parquet` with `entries/NAME.json`, and `manifest.json`.

Any number of processes may write to one folder. A shard appears under its name when it is complete, and counts as
finished when its entry exists. So a killed process loses only the shards that it was working on.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from promptcal.errors import RunError, shorten
from promptcal.runtime import files
from promptcal.runtime.json_model import check_format
from promptcal.runtime.locking import locked
from promptcal.shards.locations import is_url
from promptcal.shards.manifest import FORMAT, InputShard, ShardEntry, ShardManifest, ShardPlan

_LISTS = "lists"
_URL = re.compile(r"[a-z][\w+-]+:/", re.IGNORECASE)  # a path object has only one of the two slashes


class ShardFolder:
    """Names of the files in a folder of shards, and what is finished."""

    def __init__(self, path: str | PathLike[str]) -> None:
        if _URL.match(str(path)):
            raise RunError(f"the output {path} is a URL; give a folder of this machine, or of a mounted file system")
        self.path = Path(path).absolute()
        self.plan_file = self.path / "plan.json"
        self.manifest_file = self.path / "manifest.json"
        self.totals_file = self.path / "totals.json"
        self.shards_folder = self.path / "shards"
        self.entries_folder = self.path / "entries"
        self.lists_folder = self.path / _LISTS

    @classmethod
    def is_at(cls, path: str | PathLike[str]) -> bool:
        """Whether a path is a folder of shards; a path that is too long is none."""
        return not is_url(str(path)) and os.path.isfile(os.path.join(path, "plan.json"))

    def file(self, name: str) -> Path:
        return self.shards_folder / f"{name}.parquet"

    def entry_file(self, name: str) -> Path:
        return self.entries_folder / f"{name}.json"

    def plan(self) -> ShardPlan:
        plan = ShardPlan.read(self.plan_file)
        check_format(plan.format, FORMAT, 1, str(self.plan_file))
        return plan

    def manifest(self) -> ShardManifest:
        """The manifest of a folder whose shards are all finished."""
        if not self.manifest_file.is_file():
            raise RunError(f"the shards in {self.path} are not finished; run the command that writes them again")
        return ShardManifest.read(self.manifest_file)

    def begin(
        self,
        work: dict[str, Any],
        source: Sequence[str],
        find: Callable[["ShardFolder", ShardPlan | None], list[InputShard]],
    ) -> ShardPlan:
        """The plan, written by the first process. ``find`` lists the input shards; later runs may add some."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"the output {self.path} is a file; give a folder")
        if not self.plan_file.is_file() and self.path.is_dir() and any(not _is_ours(p) for p in self.path.iterdir()):
            raise RunError(f"the folder {self.path} is not empty and has no plan.json; choose another --output")
        existed = self.path.is_dir()
        self._check_links()
        try:
            files.make_folder(self.shards_folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            reason = error.strerror or error
            raise RunError(f"the output {shorten(self.path, 200)} cannot be made ({reason}); choose another") from error
        try:
            self.entries_folder.mkdir(exist_ok=True)
            with self._locked():
                return self._begin(work, list(source), find)
        except BaseException:
            if not existed and not self.plan_file.is_file():
                files.remove_folder(self.path)  # nothing was planned, so leave nothing behind
            raise

    def _begin(
        self,
        work: dict[str, Any],
        source: list[str],
        find: Callable[["ShardFolder", ShardPlan | None], list[InputShard]],
    ) -> ShardPlan:
        previous = self.plan() if self.plan_file.is_file() else None
        if previous is not None:
            _check_same(previous, work, source, self.path)
        plan = ShardPlan(work=work, source=source, shards=find(self, previous))
        if previous is None or previous.shards != plan.shards:
            plan.write(self.plan_file)
            self.manifest_file.unlink(missing_ok=True)
        return plan

    def _check_links(self) -> None:
        """Reject folders that are links: in an untrusted folder, they could lead to any place."""
        for folder in (self.shards_folder, self.entries_folder, self.lists_folder):
            if folder.is_symlink():
                raise RunError(f"{folder} is a link to another place; replace it by what it links to")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; the others wait for an hour."""
        with locked(self.path / ".lock", str(self.path), wait=True):
            yield

    def entry(self, name: str) -> ShardEntry | None:
        """What a finished shard contains; None if the shard is not finished."""
        file, described = self.file(name), self.entry_file(name)
        if not described.is_file() or not file.is_file():
            return None
        entry = ShardEntry.read(described)
        return entry if file.stat().st_size == entry.bytes else None

    def unfinished(self, shards: Sequence[InputShard]) -> list[InputShard]:
        return [shard for shard in shards if self.entry(shard.name) is None]

    def finish(self, plan: ShardPlan, check: Callable[[list[InputShard], int], None]) -> ShardManifest | None:
        """Write the manifest if all shards are finished; ``check`` gets the number of rows and may reject them."""
        with self._locked():
            entries = [entry for shard in plan.shards if (entry := self.entry(shard.name)) is not None]
            if len(entries) < len(plan.shards):
                return None
            manifest = ShardManifest.of(plan, entries)
            if self.manifest_file.is_file() and (stored := self.manifest()).shards == manifest.shards:
                return stored
            check(plan.shards, manifest.rows)
            files.remove_leftovers(self.path)
            manifest.write(self.manifest_file)
            return manifest


def _is_ours(path: Path) -> bool:
    """Whether a process wrote it before it wrote the plan."""
    return path.name in (".lock", _LISTS, "shards", "entries") or files.is_temporary(path)


def _check_same(plan: ShardPlan, work: dict[str, Any], source: list[str], path: Path) -> None:
    for key in sorted(plan.work.keys() | work.keys()):
        if plan.work.get(key) != work.get(key):
            there, here = shorten(plan.work.get(key), 60), shorten(work.get(key), 60)
            raise RunError(
                f"{path} has the shards of another run or model ({key} is {there} there and {here} here); choose "
                "another --output"
            )
    if plan.source != source:
        there, here = shorten(", ".join(plan.source), 200), shorten(", ".join(source), 200)
        raise RunError(f"{path} has the shards of {there}, not of {here}; choose another --output")
