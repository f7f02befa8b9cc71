"""A lock keeps others out while its holder lives, and not a moment longer."""

import os
from contextlib import ExitStack, contextmanager

import pytest

from promptcal.errors import RunError
from promptcal.runtime.locking import locked


def take(path):
    with locked(path, "the run"):
        pass


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    with locked(tmp_path / "lock", "the run"), pytest.raises(RunError, match=rf"\({os.getpid()}\) is at work on the"):
        take(tmp_path / "lock")
    take(tmp_path / "lock")


@contextmanager
def child_that_has_done(work):
    """A forked process that has done this and lives on meanwhile."""
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


def test_a_child_does_not_hold_what_its_parent_held(tmp_path):
    with ExitStack() as children:
        with locked(tmp_path / "lock", "the run"):
            children.enter_context(child_that_has_done(lambda: None))
        take(tmp_path / "lock")


def test_a_dead_holder_keeps_no_one_out(tmp_path):
    stack = ExitStack()
    with child_that_has_done(lambda: stack.enter_context(locked(tmp_path / "lock", "the run"))):  # noqa: SIM117
        with pytest.raises(RunError, match="at work"):
            take(tmp_path / "lock")
    take(tmp_path / "lock")
