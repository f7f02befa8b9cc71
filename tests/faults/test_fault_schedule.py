"""Every write, flush, rename and so on of a short fit fails once in turn; nothing is lost, and every message is clear.

As SQLite tests its files: a first fit counts the operations. Then one fit after another is run in which the next
operation fails. Afterwards the directory is resumed to the same result, bit by bit, or refused with a sentence.
"""

import errno
import itertools
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import leftovers

from promptcal import api
from promptcal.errors import PromptCALError
from promptcal.run import RunDirectory
from promptcal.runtime import files

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
OPERATIONS = ("fsync", "replace", "rename", "link", "mkdir", "unlink", "rmdir", "ftruncate", "write")


class FileLayer:
    """Passes the operations on files through, and lets the ``failing``-th of them fail."""

    def __init__(self, failing=None, number=errno.ENOSPC):
        self.failing = failing
        self.number = number
        self.done = []

    def _reach(self, what, path):
        self.done.append((what, path))
        return len(self.done) - 1 == self.failing

    def _error(self, path=None):
        return OSError(self.number, os.strerror(self.number), path)

    def _operation(self, name, original):
        def operate(*given, **named):
            path = os.fspath(given[0]) if isinstance(given[0], str | os.PathLike) else ""
            if self._reach(name, path):
                raise self._error(path or None)
            return original(*given, **named)

        return operate

    def _fill(self, temporary, write):
        """A content that fails is half-written, unless it is a hard link to an older file."""
        fails = self._reach("content", str(temporary))
        write(temporary)
        if fails and temporary.stat().st_nlink == 1:
            os.truncate(temporary, temporary.stat().st_size // 2)
        if fails:
            raise self._error(str(temporary))

    @contextmanager
    def active(self):
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, self._operation(name, getattr(os, name)))
            patch.setattr(files, "_fill", self._fill)
            yield self


@pytest.fixture(scope="module")
def arguments(small_set, quick_settings):
    images = small_set[0]
    overrides = (*quick_settings, "warmup.epochs=1", "affinity.epochs=1", "clustering.n_init=2", "tensorboard=false")
    given = {"images": images[::2], "labels": [0, 1, *[-1] * 4] * 4, "n_classes": 4, "overrides": overrides}
    assert len(given["images"]) == len(given["labels"])
    return {**given, "progress": False}


@pytest.fixture(scope="module")
def undisturbed(arguments, tmp_path_factory, outcome):
    """The result of a fit, and its operations on files."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    with FileLayer().active() as layer:
        api.fit(**arguments, output=output)
    return outcome(output), layer.done


def fit_until_it_fails(arguments, output, point, number):
    """What a fit says in which one operation fails; empty if the fit ends without it."""
    with FileLayer(point, number).active():
        try:
            api.fit(**arguments, output=output)
        except PromptCALError as error:
            return str(error)
        except OSError as error:  # the command line shows it as one sentence, too
            if RunDirectory(output).info().status != "finished":  # then it is of the report
                raise
            return str(error)
    return ""


def continue_fit(arguments, output):
    """Run the same command again, as the message asks."""
    directory = RunDirectory(output)
    if directory.exists() and directory.info().status == "finished":
        api.make_report(run=output, progress=False)
        return
    api.fit(**arguments, output=output, resume=directory.exists())


def check_point(arguments, undisturbed, output, point, number, outcome):
    """Whether the fit failed at this point; in any case, what follows has the same result."""
    expected, done = undisturbed
    said = fit_until_it_fails(arguments, output, point, number)
    where = (point, done[point], errno.errorcode[number], said)
    assert "\n" not in said, where
    assert leftovers(output) == [] or done[point][0] == "unlink", where
    if said:
        assert os.strerror(number) in said or "cannot be" in said, where
        continue_fit(arguments, output)
    assert outcome(output) == expected, where
    assert (output / "report.html").is_file(), where
    assert leftovers(output) == [], where
    return bool(said)


def test_a_sample_of_the_schedule(arguments, undisturbed, tmp_path, outcome):
    """The first operation of each kind on each file, of which every sixteenth is tried."""
    done = undisturbed[1]
    assert len(done) > 200
    kinds = {}
    for point, (what, path) in enumerate(done):
        kinds.setdefault((what, Path(path).name.rpartition(".")[0][:-12]), point)
    chosen = sorted(kinds.values())[::16]
    failed = [
        check_point(arguments, undisturbed, tmp_path / f"{point}", point, number, outcome)
        for point, number in zip(chosen, itertools.cycle(ERRORS), strict=False)
    ]
    assert sum(failed) > len(failed) // 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_the_whole_schedule(arguments, undisturbed, tmp_path, outcome, number):
    done = undisturbed[1]
    failed = Counter()
    for point in range(len(done)):
        output = tmp_path / f"{point}"
        if check_point(arguments, undisturbed, output, point, number, outcome):
            failed[done[point][0]] += 1
        files.remove_folder(output)
        if point % 20 == 0:
            print(f"{errno.errorcode[number]}: {point} of {len(done)} fault points", flush=True)
    print(f"{len(done)} fault points {Counter(what for what, _ in done)}, stopped the fit: {failed}")
    assert failed["content"]
    assert failed["fsync"]
    assert failed["replace"]
