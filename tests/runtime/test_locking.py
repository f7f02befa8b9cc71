"""A lock excludes other processes until its holder releases it or dies."""

import errno
import fcntl
import os
import socket
from contextlib import ExitStack, contextmanager
from threading import Timer

import pytest

from promptcal.errors import PromptCALWarning, RunError, TryAgainError
from promptcal.runtime import locking
from promptcal.runtime.locking import locked, try_lock


def acquire(path):
    with locked(path, "the run"):
        pass


def test_the_error_names_what_is_locked_and_the_holder(tmp_path):
    with locked(tmp_path / "lock", "the run"):
        for _ in range(2):  # a refused attempt must not erase the holder's PID
            with pytest.raises(RunError, match=rf"the run is in use by another process \(PID {os.getpid()}\); wait"):
                acquire(tmp_path / "lock")
    acquire(tmp_path / "lock")
    assert (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    ("content", "holder"),
    [
        ("17 other-host\n", r"another process \(PID 17 on other-host\); wait"),
        ("17\n", r"another process \(PID 17\); wait"),  # of version 0.2
        ("17 \x1b[31mred\n", "another process; wait"),
        ("9" * 1000, "another process; wait"),
        ("", "another process; wait"),
    ],
)
def test_a_holder_on_another_host_is_named_and_nothing_else_is_quoted(tmp_path, content, holder):
    with locked(tmp_path / "lock", "the run"):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(RunError, match=f"the run is in use by {holder}"):
            acquire(tmp_path / "lock")


@pytest.mark.parametrize("content", ["1 localhost\n", "17 other-host\n", "no number", "\0" * 5000])
def test_a_lock_file_alone_blocks_nobody(tmp_path, content):
    """It may name a process that is dead, or one that has an unrelated program's number."""
    (tmp_path / "lock").write_text(content)
    acquire(tmp_path / "lock")
    assert (tmp_path / "lock").read_text() == f"{os.getpid()} {socket.gethostname()}\n"


@contextmanager
def forked_child(work):
    """A forked process that has called ``work`` and stays alive inside the context."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])
        work()
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        yield
    finally:
        os.write(go[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *go):
            os.close(descriptor)


def test_a_lock_that_is_waited_for(tmp_path, monkeypatch):
    """The holder is named after some time, and later the same command has to be run again."""
    monkeypatch.setattr(locking, "_SAY_AFTER", 0.1)
    monkeypatch.setattr(locking, "_GIVE_UP_AFTER", 0.4)
    held = []

    def hold():
        held.append(locked(tmp_path / "lock", "the shards", wait=True))
        held[0].__enter__()

    with forked_child(hold):
        holder = r"the shards is( still)? in use by another process \(PID \d+\)"
        with (
            pytest.warns(PromptCALWarning, match=f"{holder}; waiting until it is free"),
            pytest.raises(TryAgainError, match=f"{holder}; run the same command again"),
            locked(tmp_path / "lock", "the shards", wait=True),
        ):
            pass
    with locked(tmp_path / "lock", "the shards", wait=True):
        pass


def test_a_lock_that_becomes_free_while_it_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "_SAY_AFTER", 0.1)
    held = locked(tmp_path / "lock", "the shards")
    held.__enter__()
    release = Timer(0.5, lambda: held.__exit__(None, None, None))
    release.start()
    with pytest.warns(PromptCALWarning, match="waiting"), locked(tmp_path / "lock", "the shards", wait=True):
        pass
    release.join()


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path):
    with ExitStack() as children:
        with locked(tmp_path / "lock", "the run"):
            children.enter_context(forked_child(lambda: None))
            with pytest.raises(RunError):  # the fork did not release it either
                acquire(tmp_path / "lock")
        acquire(tmp_path / "lock")


def test_the_lock_of_a_dead_process_is_free(tmp_path):
    stack = ExitStack()
    with forked_child(lambda: stack.enter_context(locked(tmp_path / "lock", "the run"))):  # noqa: SIM117
        with pytest.raises(RunError, match="in use"):
            acquire(tmp_path / "lock")
    acquire(tmp_path / "lock")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, number):
    def fail(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(PromptCALWarning, match="does not support file locks .*; do not start two fits"):
        acquire(tmp_path / "lock")
    (tmp_path / "lock").write_text("17 other-host\n")
    with pytest.warns(
        PromptCALWarning, match=r"last used by a process \(PID 17 on other-host\); do not start two fits"
    ):
        acquire(tmp_path / "lock")
    with (tmp_path / "file").open("wb") as file, pytest.warns(PromptCALWarning, match="does not support file locks"):
        assert try_lock(file.fileno())


def test_a_lock_file_that_cannot_be_created_is_an_os_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        acquire(tmp_path / "file" / "lock")
