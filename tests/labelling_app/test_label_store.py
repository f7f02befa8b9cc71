"""The store: undo and redo after a restart, kill -9 while it writes, a full disk, damaged and foreign files."""

import json
import os
import signal
import sqlite3
import time
import zlib
from contextlib import closing

import numpy as np
import pytest
from test_label_state import assignments

from promptcal.app import label_store
from promptcal.app.actions import Assign, Merge, NoneOfThese, Rename, SplitImages, parse_action
from promptcal.app.label_state import LabelState, NameTakenError
from promptcal.app.label_store import DiskFullError, LabelStore
from promptcal.errors import LabelError, RunError

ACTIONS = [
    Assign(images=[1, 2], category=0),
    NoneOfThese(images=[3]),
    Rename(category=1, name="great tit"),
    SplitImages(images=[4, 5, 6], parts=[0, 1, 1]),
    Merge(source=3, target=0),
]


@pytest.fixture
def begun(tmp_path):
    store = LabelStore(tmp_path / "labels.sqlite")
    store.begin(assignments())
    return store


def same(one, other):
    return (
        one.categories == other.categories
        and np.array_equal(one.labels, other.labels)
        and np.array_equal(one.mine, other.mine)
        and np.array_equal(one.predictions.category, other.predictions.category)
        and np.array_equal(one.predictions.second, other.predictions.second)
    )


def test_every_action_can_be_undone_and_redone_also_after_a_restart(begun, tmp_path):
    base = LabelState.of(assignments())
    after = [base]
    for action in ACTIONS:
        after.append(action.apply(after[-1]))
        begun.append(action, action.title(after[-1]))
    assert same(begun.replay(base), after[-1])
    for step in reversed(range(len(ACTIONS))):
        begun.close()
        begun = LabelStore(tmp_path / "labels.sqlite")
        assert begun.next_titles()[0] == ACTIONS[step].title(after[step + 1])
        assert begun.undo().undone
        assert same(begun.replay(base), after[step])
    assert begun.undo() is None
    for step in range(len(ACTIONS)):
        begun.close()
        begun = LabelStore(tmp_path / "labels.sqlite")
        assert not begun.redo().undone
        assert same(begun.replay(base), after[step + 1])
    assert begun.redo() is None
    begun.undo()
    begun.append(ACTIONS[0], "another")  # what was undone is gone
    assert begun.next_titles() == ("another", None)
    assert [action.title for action in begun.actions()][-2:] == ["split 3 images into 2 parts", "another"]


def test_labels_are_readable_without_the_run(begun):
    for action in ACTIONS[:3]:
        begun.append(action, "")
    assert begun.labels() == {"1.png": "cat", "2.png": "cat", "3.png": ""}
    assert not begun.is_empty


def write_until_killed(file, acknowledgements):
    store = LabelStore(file)
    for number in range(100_000):
        if number % 5 == 4:
            store.undo()
        else:
            store.append(Assign(images=[number % 8], category=number % 3), str(number))
        os.write(acknowledgements, f"{number}\n".encode())


@pytest.mark.parametrize("seconds", [0.02, 0.11, 0.3])
def test_a_killed_writer_loses_at_most_the_action_in_flight(begun, tmp_path, seconds):
    file = tmp_path / "labels.sqlite"
    begun.close()
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reading)
            write_until_killed(file, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        acknowledged = int(lines.readline())
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        acknowledged = int((lines.read().splitlines() or [acknowledged])[-1])
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    store = LabelStore(file)
    model, undone = [], []
    states = {}
    for number in range(acknowledged + 2):  # what was acknowledged, and the action in flight
        if number % 5 == 4:
            undone = [model.pop(), *undone]
        else:
            model, undone = [*model, str(number)], []
        states[number] = [(title, False) for title in model] + [(title, True) for title in undone]
    found = [(action.title, action.undone) for action in store.actions()]
    assert found in (states[acknowledged], states[acknowledged + 1])
    expected = LabelState.of(assignments())
    for title in (title for title, is_undone in found if not is_undone):
        expected = Assign(images=[int(title) % 8], category=int(title) % 3).apply(expected)
    assert same(store.replay(LabelState.of(assignments())), expected)
    store.append(ACTIONS[0], "after the crash")  # the next process can write at once


def test_a_full_disk_is_said_and_changes_nothing(begun):
    base = LabelState.of(assignments())
    begun.append(ACTIONS[0], "saved")
    pages = begun._connection.execute("PRAGMA page_count").fetchone()[0]
    begun._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then answers as on a full disk
    noise = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 200)))

    def fill():
        for _ in range(100):
            begun.append(Rename(category=1, name=noise), "x" * 4000)

    with pytest.raises(DiskFullError, match="full.*not saved; free some space"):
        fill()
    titles = [action.title for action in begun.actions()]
    assert titles[0] == "saved"
    begun._connection.execute("PRAGMA max_page_count = 100000")
    begun.append(ACTIONS[1], "there is space again")
    assert [action.title for action in begun.actions()] == [*titles, "there is space again"]
    assert begun.replay(base).label_names()[3] == ""


def test_damaged_foreign_and_newer_files_are_one_sentence(tmp_path):
    file = tmp_path / "labels.sqlite"
    file.write_bytes(b"no database " * 100)
    with pytest.raises(RunError, match="is damaged .* move it away to begin again"):
        LabelStore(file)
    file.unlink()
    connection = sqlite3.connect(file)
    connection.executescript("CREATE TABLE x (y); PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(RunError, match="has format 7 and this version of promptcal reads 1"):
        LabelStore(file)
    file.unlink()
    store = LabelStore(file)
    store.begin(assignments())
    store._connection.execute("INSERT INTO actions (title, time, payload) VALUES ('', '', x'00')")
    with pytest.raises(RunError, match="is damaged"):
        store.replay(LabelState.of(assignments()))


def test_a_link_is_never_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"")
    (tmp_path / "labels.sqlite").symlink_to(other)
    with pytest.raises(RunError, match="is a link to another file"):
        LabelStore(tmp_path / "labels.sqlite")
    (tmp_path / "labels.sqlite").unlink()
    os.link(other, tmp_path / "labels.sqlite-journal")
    with pytest.raises(RunError, match="is a link to another file"):
        LabelStore(tmp_path / "labels.sqlite")
    assert other.read_bytes() == b""


def test_attempts_are_kept(begun):
    first, second = begun.add_attempt("quick", None), begun.add_attempt("fit", "/runs/run-2")
    begun.end_attempt(first, "accepted", "12 images moved")
    assert [(a.number, a.kind, a.status, a.output, a.message) for a in begun.attempts()] == [
        (first, "quick", "accepted", None, "12 images moved"), (second, "fit", "running", "/runs/run-2", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", '{"kind": "fly"}', '{"kind": "assign", "images": ["a"], "category": 0}', '{"kind": "assign"}']
)
def test_other_messages_are_not_actions(text):
    with pytest.raises(LabelError, match="this is not an action"):
        parse_action(text)


def test_a_page_cannot_send_every_action():
    with pytest.raises(LabelError, match="cannot be sent by a page"):
        parse_action('{"kind": "import", "source": "x", "labels": {"0": "a"}}', ("assign",))
    with pytest.raises(NameTakenError):
        Rename(category=1, name="cat").apply(LabelState.of(assignments()))


def stored(text):
    return zlib.compress(text if isinstance(text, bytes) else json.dumps(text).encode())


BASE = {"paths": ["a"], "names": ["x"], "known": [True], "clusters": "AAAAAA==", "labelled": "AA=="}
HOSTILE_STORES = {
    "a view": """DROP TABLE actions; CREATE VIEW actions AS
        WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
        SELECT x number, 't' title, 't' time, 0 undone, x'00' payload FROM c""",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON actions BEGIN DELETE FROM base; END",
    "another table": "CREATE TABLE x (y)",
    "no base": "DELETE FROM base",
    "two bases": "INSERT INTO base SELECT * FROM base",
    "a number as action": "UPDATE actions SET payload = 7",
    "a text as action": "UPDATE actions SET payload = 'x'",
    "bytes as title": "UPDATE actions SET title = x'ff'",
    "a text that is no Unicode": "UPDATE actions SET title = CAST(x'ff' AS TEXT)",
}
HOSTILE_ACTIONS = [
    b"", b"nul", b"\xff", b"[" * 100_000, [], {"kind": "assign", "images": [2**63], "category": 0},
    {"kind": "assign", "images": [10**24], "category": 0},
    {"kind": "import", "source": "x", "labels": {str(10**24): "a"}},
    {"kind": "split", "images": [4, 5], "parts": [0, 10**24]}, {"kind": "rename", "category": 10**24, "name": "x"},
]  # fmt: skip
HOSTILE_BASES = [
    b"", b"nul", [], {}, BASE | {"paths": None}, BASE | {"names": []}, BASE | {"names": "x"}, BASE | {"known": []},
    BASE | {"clusters": "####"}, BASE | {"clusters": "/////w=="}, BASE | {"clusters": "AQAAAA=="}, BASE | {"paths": []},
    BASE | {"paths": ["a", "b"]}, BASE | {"labelled": ""},
]  # fmt: skip


@pytest.fixture
def edit(begun, tmp_path):
    """Change the file of a store with one action as somebody else could."""
    begun.append(ACTIONS[0], "one")
    begun.close()

    def change(sql, *values):
        with closing(sqlite3.connect(tmp_path / "labels.sqlite", isolation_level=None)) as connection:
            connection.executescript(sql) if not values else connection.execute(sql, values)

    return change


def use(file):
    with closing(LabelStore(file)) as store:
        store.replay(LabelState.of(assignments()))
        store.labels()
        store.actions()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", HOSTILE_STORES)
def test_a_store_from_somebody_else(edit, tmp_path, kind):
    edit(HOSTILE_STORES[kind])
    with pytest.raises(RunError, match="is damaged"):
        use(tmp_path / "labels.sqlite")


@pytest.mark.parametrize("content", HOSTILE_ACTIONS, ids=str)
def test_hostile_actions(edit, tmp_path, content):
    edit("UPDATE actions SET payload = ?", stored(content))
    with pytest.raises(RunError, match="is damaged"):
        use(tmp_path / "labels.sqlite")


@pytest.mark.parametrize("content", HOSTILE_BASES, ids=str)
def test_hostile_bases(edit, tmp_path, content):
    edit("UPDATE base SET content = ?", stored(content))
    with pytest.raises(RunError, match="is damaged"):
        use(tmp_path / "labels.sqlite")


def test_values_that_expand(edit, tmp_path, monkeypatch):
    monkeypatch.setattr(label_store, "_MOST_BYTES", 1000)
    edit("UPDATE actions SET payload = ?", zlib.compress(b" " * 1_000_000))
    with pytest.raises(RunError, match="a value has over 0 MB"):
        use(tmp_path / "labels.sqlite")
    edit("UPDATE actions SET payload = ?", zlib.compress(b"{}")[:-2])
    with pytest.raises(RunError, match="a value is truncated"):
        use(tmp_path / "labels.sqlite")
