"""`labels.sqlite` in the run directory: every action of the user, committed before it is acknowledged.

The state is the result of all actions that are not undone, applied to the run. Undone actions stay until the next
action, so undo and redo work after a restart.
"""

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from promptcal.app.actions import Action, parse_action
from promptcal.app.label_state import LabelState
from promptcal.app.packing import packed, unpacked
from promptcal.errors import LabelError, PromptCALError, RunError
from promptcal.run.assignments import Assignments
from promptcal.runtime.json_model import StrictModel, first_problem

FILE_NAME = "labels.sqlite"
FORMAT = 1
_TABLES = """
CREATE TABLE base (digest TEXT NOT NULL, content BLOB NOT NULL);
CREATE TABLE actions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, time TEXT NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0,
    payload BLOB NOT NULL
);
CREATE TABLE attempts (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, started TEXT NOT NULL, status TEXT NOT NULL,
    output TEXT, message TEXT NOT NULL DEFAULT ''
);
"""


_TYPES = {  # of the columns, as SQLite stores them: an untrusted file can have any
    "base": {"digest": "text", "content": "blob"},
    "actions": {"number": "integer", "title": "text", "time": "text", "undone": "integer", "payload": "blob"},
    "attempts": {"number": "integer", "kind": "text", "started": "text", "status": "text", "message": "text"}
    | {"COALESCE(output, '')": "text"},
}
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter if an error names what is damaged
_MOST_BYTES = 2**30  # of an action or of the base, uncompressed


class DiskFullError(PromptCALError):
    """An action could not be saved."""


class _Base(StrictModel):
    """What the actions refer to."""

    paths: list[str]
    names: list[str]
    known: list[bool]
    clusters: str
    labelled: str


@dataclass(frozen=True)
class StoredAction:
    number: int
    title: str
    time: str
    undone: bool


@dataclass(frozen=True)
class Attempt:
    """A refit: its kind ("quick" or "fit"), when it started, and how it ended."""

    number: int
    kind: str
    started: str
    status: str
    output: str | None
    message: str


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def digest_of(found: Assignments) -> str:
    """The SHA-256 of what actions refer to: the images in their order, and the categories."""
    content = [found.paths, found.names, found.known, found.clusters.tolist(), found.labelled.tolist()]
    return sha256(json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


class LabelStore:
    """The actions on one run. Use it from one thread at a time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        _reject_links(file)
        self._connection = _open(file)

    def close(self) -> None:
        self._connection.close()

    @property
    def is_empty(self) -> bool:
        return not self._rows("SELECT 1 FROM base")

    @property
    def digest(self) -> str:
        """The `digest_of` the assignments that the actions refer to."""
        return str(self._rows("SELECT digest FROM base")[0][0])

    def begin(self, found: Assignments) -> None:
        """Store the images and categories that the actions refer to."""
        base = _Base(
            paths=found.paths,
            names=found.names,
            known=found.known,
            clusters=packed(found.clusters, "<i4"),
            labelled=packed(found.labelled, "u1"),
        )
        with self._transaction() as connection:
            connection.execute("DELETE FROM base")
            row = digest_of(found), zlib.compress(base.model_dump_json().encode(), 1)
            connection.execute("INSERT INTO base VALUES (?, ?)", row)

    def labels(self) -> dict[str, str]:
        """The labels by path that all actions lead to, without the run: it may be another one by now."""
        found = self._base()
        state = self.replay(LabelState.of(found))
        mine = zip(found.paths, state.label_names(), (state.mine | (state.labels < 0)).tolist(), strict=True)
        return {path: label for path, label, is_mine in mine if label is not None and is_mine}

    def _base(self) -> Assignments:
        """The images and categories that `begin` stored."""
        try:
            base = _Base.model_validate_json(_decompressed(self._rows("SELECT content FROM base")[0][0]))
            n = len(base.paths)
            clusters, labelled = unpacked(base.clusters, "<i4", n), unpacked(base.labelled, "u1", n) > 0
            if not (n and 0 <= clusters.min() <= clusters.max() < len(base.names) == len(base.known)):
                raise LabelError("the categories do not fit the images")
        except ValidationError as error:
            raise _damaged(self.file, first_problem(error)) from error
        except (PromptCALError, zlib.error) as error:
            raise _damaged(self.file, error) from error
        zeros, nothing = np.zeros(n), np.full(n, -1)
        return Assignments(base.paths, clusters, zeros, base.names, base.known, labelled, nothing, zeros)

    def replay(self, state: LabelState) -> LabelState:
        """The state after all actions that are not undone."""
        rows = self._rows("SELECT payload FROM actions WHERE undone = 0 ORDER BY number")
        try:
            for (payload,) in rows:
                state = parse_action(_decompressed(payload)).apply(state)
        except (PromptCALError, zlib.error) as error:
            raise _damaged(self.file, error) from error
        return state

    def append(self, action: Action, title: str) -> int:
        """Commit an action; undone actions can no longer be redone."""
        payload = zlib.compress(action.model_dump_json().encode(), 1)
        with self._transaction() as connection:
            connection.execute("DELETE FROM actions WHERE undone = 1")
            cursor = connection.execute(
                "INSERT INTO actions (title, time, payload) VALUES (?, ?, ?)", (title, now(), payload)
            )
            return int(cursor.lastrowid or 0)

    def undo(self) -> StoredAction | None:
        """Undo the last action; None if there is none."""
        return self._mark("SELECT number, title, time FROM actions WHERE undone = 0 ORDER BY number DESC LIMIT 1", 1)

    def redo(self) -> StoredAction | None:
        return self._mark("SELECT number, title, time FROM actions WHERE undone = 1 ORDER BY number LIMIT 1", 0)

    def _mark(self, query: str, undone: int) -> StoredAction | None:
        with self._transaction() as connection:
            row = connection.execute(query).fetchone()
            if row is None:
                return None
            connection.execute("UPDATE actions SET undone = ? WHERE number = ?", (undone, row[0]))
        number, title, time = row
        return StoredAction(number, title, time, bool(undone))

    def actions(self) -> list[StoredAction]:
        rows = self._rows("SELECT number, title, time, undone FROM actions ORDER BY number")
        return [StoredAction(number, title, time, bool(undone)) for number, title, time, undone in rows]

    def next_titles(self) -> tuple[str | None, str | None]:
        """What undo and redo would do."""
        undo = self._rows("SELECT title FROM actions WHERE undone = 0 ORDER BY number DESC LIMIT 1")
        redo = self._rows("SELECT title FROM actions WHERE undone = 1 ORDER BY number LIMIT 1")
        return (undo[0][0] if undo else None), (redo[0][0] if redo else None)

    def add_attempt(self, kind: str, output: str | None) -> int:
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO attempts (kind, started, status, output) VALUES (?, ?, 'running', ?)",
                (kind, now(), output),
            )
            return int(cursor.lastrowid or 0)

    def end_attempt(self, number: int, status: str, message: str = "") -> None:
        with self._transaction() as connection:
            connection.execute(
                "UPDATE attempts SET status = ?, message = ? WHERE number = ?", (status, message, number)
            )

    def attempts(self) -> list[Attempt]:
        rows = self._rows("SELECT number, kind, started, status, output, message FROM attempts ORDER BY number")
        return [Attempt(*row) for row in rows]

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except _UNREADABLE as error:
            raise _damaged(self.file, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in it is on the disk when it ends, or nothing is."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except (sqlite3.OperationalError, OSError) as error:  # disk full, no permission, locked
            raise DiskFullError(
                f"{self.file} cannot be written ({error}), so this was not saved; free some space and do it again"
            ) from error
        except sqlite3.DatabaseError as error:
            raise _damaged(self.file, error) from error


def _open(file: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=5)
    except sqlite3.Error as error:
        raise RunError(f"{file} cannot be opened ({error}); labels are stored there, so make it writable") from error
    try:
        connection.execute("PRAGMA synchronous = FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
        elif version != FORMAT:
            raise RunError(
                f"{file} has format {version} and this version of promptcal reads {FORMAT}; use the version that wrote "
                "it, or move the file away to begin again"
            )
        _check_content(connection, file)
    except sqlite3.OperationalError as error:
        connection.close()
        raise RunError(f"{file} cannot be written ({error}); labels are stored there, so make it writable") from error
    except _UNREADABLE as error:
        connection.close()
        raise _damaged(file, error) from error
    except RunError:
        connection.close()
        raise
    return connection


def _check_content(connection: sqlite3.Connection, file: Path) -> None:
    """Reject views and triggers, which would run code of the author of the file, and values of other types."""
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(_TABLES)
        if not _schema(connection) <= _schema(empty):
            raise _damaged(file, "it has other tables, or views or triggers")
    for table, columns in _TYPES.items():
        other = " OR ".join(f"typeof({name}) != '{kind}'" for name, kind in columns.items())
        if connection.execute(f"SELECT 1 FROM {table} WHERE {other} LIMIT 1").fetchone() is not None:
            raise _damaged(file, f"a value of another type in {table}")
    if connection.execute("SELECT COUNT(*) FROM base").fetchone()[0] > 1:
        raise _damaged(file, "it has several results")
    if connection.execute("SELECT EXISTS (SELECT 1 FROM actions) > EXISTS (SELECT 1 FROM base)").fetchone()[0]:
        raise _damaged(file, "it does not say which result it refers to")


def _schema(connection: sqlite3.Connection) -> set[str]:
    return {" ".join(str(sql).split()) for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}


def _decompressed(content: bytes) -> bytes:
    """The content of a value; a `LabelError` if a few bytes expand to more than any real value has."""
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(content, _MOST_BYTES)
    if unpacker.unconsumed_tail:
        raise LabelError(f"a value has over {_MOST_BYTES >> 20:,} MB")
    if not unpacker.eof:
        raise LabelError("a value is truncated")
    return found


def _reject_links(file: Path) -> None:
    """A link in an untrusted run directory could make SQLite write to another file."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        place = file.with_name(file.name + suffix)
        if place.is_symlink() or (place.exists() and os.stat(place).st_nlink > 1):
            raise RunError(f"{place} is a link to another file; remove it")


def _damaged(file: Path, reason: object) -> RunError:
    return RunError(f"{file} is damaged ({reason}); move it away to begin again, or restore it from a backup")
