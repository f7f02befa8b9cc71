"""Bad input: one sentence, finished shards are kept, and an exit code that a scheduler understands."""

import errno
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile
from shard_helpers import BACKBONE, write_parquet, write_tar

from promptcal.data import ImageSet
from promptcal.errors import TryAgainError
from promptcal.runtime import files
from promptcal.shards import locations
from promptcal.shards.decoders import CropSize, ProcessDecoders
from promptcal.shards.engines import NAMES, local_engine
from promptcal.shards.find_shards import is_sharded
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_images import image_places
from promptcal.shards.shard_sources import ImageChunk, LocationSource


@pytest.fixture
def predict(promptcal, run, tmp_path):
    """The command line; returns the exit code and what it said on standard error."""

    def call(*words):
        arguments = [*map(str, words), "--workers", "1", "--output", tmp_path / "out", "--quiet"]
        code, _, said = promptcal("predict", run.path, *arguments)
        assert "Traceback" not in said
        return code, " ".join(said.split())

    return call


def shards_in(tmp_path):
    return sorted(file.name[:1] for file in (tmp_path / "out" / "shards").glob("*.parquet"))


@pytest.mark.parametrize("kept", [0.5, -1024, 100])
def test_truncated_tar(predict, tars, tmp_path, kept):
    """In the middle of an image, without the empty blocks at the end, and without anything but a header."""
    whole = (tars / "0.tar").read_bytes()
    end = whole.rstrip(b"\0")  # the last image may end anywhere in its block
    cut = {0.5: len(whole) // 2, -1024: -(-len(end) // 512) * 512, 100: 100}[kept]
    (tars / "0.tar").write_bytes(whole[:cut])
    code, said = predict(tars)
    assert code == 2
    assert f"{tars / '0.tar'} is truncated or no uncompressed tar" in said
    assert "write it again, then run the same command again; the other 1 shards are finished and kept" in said
    assert shards_in(tmp_path) == ["1"]
    (tars / "0.tar").write_bytes(whole)
    code, said = predict(tars)
    assert (code, said) == (0, "")
    assert shards_in(tmp_path) == ["0", "1"]


def test_parquet_without_the_required_columns(predict, pictures, tmp_path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    write_parquet(folder / "0.parquet", {"id": ["a"], "image": [pictures["000"]]})
    write_parquet(folder / "1.parquet", {"id": ["b"], "caption": ["a cat"]})
    (folder / "2.parquet").write_bytes(b"PAR1 and then nothing")
    code, said = predict(folder)
    assert code == 2
    assert (
        "1.parquet has no column of images: id, caption; it needs image (bytes), or path or url (text), and id" in said
    )
    assert "(1 more shards have problems)" in said
    assert shards_in(tmp_path) == ["0"]


def test_sources_without_an_image(predict, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("\n \n")
    for source in (tmp_path / "empty", f"file://{tmp_path}/empty", tmp_path / "list.txt"):
        code, said = predict(source, "--engine", "local")
        assert code == 2
        assert "contains no images; give tar, parquet" in said
        assert not (tmp_path / "out").exists()


def test_an_id_that_is_no_date_of_python(predict, pictures, tmp_path):
    ids = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"id": ids, "image": [pictures["000"]]}), tmp_path / "0.parquet")
    code, said = predict(tmp_path / "0.parquet")
    assert code == 2
    assert "0.parquet is no readable parquet file (date value out of range)" in said


def test_the_same_id_in_two_shards(predict, tars, pictures, tmp_path):
    write_tar(tars / "1.tar", {"other": pictures["001"], "007": pictures["002"]})
    code, said = predict(tars)
    assert code == 2
    assert f"the id 007 is in {tars / '0.tar'} and in {tars / '1.tar'}; an id names one image" in said
    assert shards_in(tmp_path) == ["0", "1"]
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_same_id_twice_in_a_shard(predict, pictures, tmp_path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    write_parquet(folder / "0.parquet", {"id": ["a", "a"], "image": [pictures["000"], pictures["001"]]})
    code, said = predict(folder)
    assert code == 2
    assert "0.parquet has the id a twice; an id names one image" in said


def test_a_shard_that_disappears(predict, tars, pictures, tmp_path):
    write_tar(tars / "1.tar", {"bad": b"so that it is not finished"})
    code, said = predict(tars)
    assert code == 2
    assert "none of the 1 images of" in said
    (tars / "1.tar").unlink()
    code, said = predict(tars)
    assert code == 2
    assert f"{tars / '1.tar'} does not exist any more; restore it, then run the same command again" in said
    assert shards_in(tmp_path) == ["0"]


def test_a_shard_that_cannot_be_read(predict, tars, tmp_path):
    (tars / "1.tar").unlink()
    (tars / "1.tar").mkdir()
    code, said = predict(tars)
    assert code == 2
    assert f"{tars / '1.tar'} cannot be read (it is a folder)" in said
    assert shards_in(tmp_path) == ["0"]


def test_a_remote_shard_that_cannot_be_reached_now(predict, tars, tmp_path, monkeypatch):
    """The command exits with 75 if only the connection failed, and with 2 if a shard has a fault, too."""
    memory = fsspec.filesystem("memory")
    for file in tars.iterdir():
        memory.pipe(f"/bucket/{file.name}", file.read_bytes())
    open_file = type(memory)._open

    def fail(self, path, *words, **options):
        if path.endswith("0.tar"):
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        return open_file(self, path, *words, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "_open", fail)
        code, said = predict("memory://bucket/*.tar")
        assert code == 75
        assert "bucket/0.tar cannot be read (Connection timed out); run the same command again later" in said
        assert "the other 1 shards are finished and kept" in said
        memory.pipe("/bucket/2.tar", b"no tar")
        code, said = predict("memory://bucket/*.tar")
        assert code == 2
        assert "bucket/2.tar is truncated" in said
        assert "(1 more shards have problems)" in said
    memory.rm("/bucket/2.tar")

    def fail_to_list(*words, **options):
        raise TimeoutError("slow")

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "glob", fail_to_list)
        code, said = predict("memory://bucket/*.tar")
        assert code == 75
        assert "memory://bucket/*.tar cannot be read (slow); run the same command again later" in said
    assert shards_in(tmp_path) == ["1"]


@pytest.fixture
def unreachable(image_folder, monkeypatch):
    """``unreachable(error, times)``: a remote folder of images, where reading a/003.png fails so many times."""
    memory = fsspec.filesystem("memory")
    for file in image_folder.rglob("*.png"):
        memory.pipe(f"/web/{file.relative_to(image_folder)}", file.read_bytes())
    open_file = type(memory)._open
    monkeypatch.setattr(locations, "_WAIT", 0)

    def failing(error, times):
        attempts = []

        def fail(self, path, *words, **options):
            if path.endswith("a/003.png"):
                attempts.append(path)
                if len(attempts) <= times:
                    raise error
            return open_file(self, path, *words, **options)

        monkeypatch.setattr(type(memory), "_open", fail)
        return attempts

    yield failing
    memory.rm("/web", recursive=True)


RESET = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def test_an_image_whose_server_fails_for_a_moment_is_not_lost(predict, unreachable, tmp_path):
    """It is tried again, then the command exits with 75, and the shard is not finished without the image."""
    attempts = unreachable(RESET, 100)
    code, said = predict("memory://web", "--shard-size", "20")
    assert code == 75
    assert "a/003.png cannot be read (Connection reset by peer); run the same command again later" in said
    assert "the other 1 shards are finished and kept" in said
    assert len(attempts) == 3
    assert len(shards_in(tmp_path)) == 1
    attempts = unreachable(RESET, 2)
    assert predict("memory://web", "--shard-size", "20") == (0, "")
    assert len(attempts) == 3
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["unreadable"] == 0


@pytest.mark.parametrize("error", [FileNotFoundError("a/003.png"), PermissionError(errno.EACCES, "Forbidden")])
def test_a_remote_image_that_is_missing_is_unreadable(predict, unreachable, tmp_path, error):
    attempts = unreachable(error, 100)
    assert predict("memory://web") == (0, "")
    assert len(attempts) == 1
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["unreadable"] == 1


def test_an_image_that_another_process_cannot_reach(unreachable):
    unreachable(RESET, 100)  # the processes are forked
    chunk = ImageChunk(["a"], ["memory://web/a/003.png"], ImageSet(["a"], LocationSource(["memory://web/a/003.png"])))
    with pytest.raises(TryAgainError, match="Connection reset by peer"):
        list(ProcessDecoders(2).map([chunk], CropSize(8, 8)))


class ServerError(Exception):
    def __init__(self, status):
        self.status = status


class ServerDisconnected(Exception):
    """Not derived from `OSError`, like ``ServerDisconnectedError`` of aiohttp."""


def caused_by(cause):
    error = FileNotFoundError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError("slow"), True),
        (ServerError(503), True),
        (ServerError(429), True),
        (ServerError(404), False),
        (ServerDisconnected(), True),
        (caused_by(TimeoutError("slow")), True),
        (caused_by(ServerError(404)), False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), False),
        (ValueError("no image"), False),
    ],
)
def test_which_errors_of_a_remote_file_may_pass(error, expected):
    assert locations.may_pass(error) is expected


def test_a_connection_that_breaks_within_a_file(predict, tars, tmp_path, pictures, monkeypatch):
    """The file is not damaged. The headers of a tar are read by a fit on a sample."""
    write_parquet(tmp_path / "0.parquet", {"id": list(pictures), "image": list(pictures.values())})
    memory = fsspec.filesystem("memory")
    memory.pipe("/web/0.parquet", (tmp_path / "0.parquet").read_bytes())
    memory.pipe("/web/0.tar", (tars / "0.tar").read_bytes())

    def fail(self, *words):
        raise TimeoutError("slow")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFile, "read", fail)
        code, said = predict("memory://web/0.parquet")
        with pytest.raises(TryAgainError, match=r"0\.tar cannot be read \(slow\)"):
            list(image_places(InputShard(name="0", kind="tar", location="memory://web/0.tar")))
    assert code == 75
    assert "0.parquet cannot be read (slow); run the same command again later" in said


def test_output_of_another_run(predict, promptcal, tars, tmp_path):
    assert predict(tars)[0] == 0
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*.*")}
    code, _, said = promptcal("embed", tars, "--backbone", BACKBONE, "--output", tmp_path / "out", "--quiet")
    assert code == 2
    assert "has the shards of another run or model" in " ".join(said.split())
    assert "choose another --output" in " ".join(said.split())
    code, said = predict(tars, "--none-below", "0.5")
    assert code == 2
    assert "(threshold is" in said
    code, said = predict(tars / "0.tar")
    assert code == 2
    assert "has the shards of" in said
    assert before == {file: file.read_bytes() for file in before}


def test_a_folder_with_images_and_a_table(predict, image_folder, run):
    """The table may have labels. Only a command that reads shards has to ask."""
    write_parquet(image_folder / "labels.parquet", {"path": ["a/000.png"], "label": ["cat"]})
    assert not is_sharded(image_folder)
    assert is_sharded(image_folder / "labels.parquet")
    code, said = predict(image_folder, "--engine", "local")
    assert code == 2
    assert f"{image_folder} has images and also labels.parquet; give the pattern '{image_folder}/*.parquet'" in said


def test_output_that_is_something_else(predict, tars, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    code, said = predict(tars)
    assert code == 2
    assert "is not empty and has no plan.json; choose another --output" in said
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("source", ["missing.tar", "photos-*.tar", "notes.docx"])
def test_no_source(predict, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.docx").write_text("")
    code, said = predict(source, "--engine", "local")
    assert code == 2
    assert "does not exist; check the path" in said or "nothing matches" in said or "is no source of images" in said
    assert not (tmp_path / "out").exists()


def test_a_full_disk(predict, tars, tmp_path, monkeypatch):
    fill, calls = files._fill, []

    def fail(temporary, write):
        calls.append(temporary)
        if sum(".parquet" in path.name for path in calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(temporary))
        fill(temporary, write)

    with monkeypatch.context() as patched:
        patched.setattr(files, "_fill", fail)
        code, said = predict(tars)
    assert code == 75
    assert "the disk is full" in said
    assert "1 of 2 shards are finished and kept; free some space, then run the same command again" in said
    assert shards_in(tmp_path) == ["0"]
    assert list((tmp_path / "out" / "shards").glob(".*.tmp")) == []
    assert predict(tars) == (0, "")


@pytest.fixture
def fail_to_write(monkeypatch):
    """``fail_to_write(name, number)``: a context in which a file of this name cannot be written."""
    fill = files._fill

    @contextmanager
    def failing(name, number):
        def fail(temporary, write):
            if temporary.name.startswith(f".{name}."):
                raise OSError(number, os.strerror(number), str(temporary))
            fill(temporary, write)

        with monkeypatch.context() as patched:
            patched.setattr(files, "_fill", fail)
            yield

    return failing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *(("plan.json", engine) for engine in NAMES),
        *(("0.txt", engine) for engine in NAMES),
        *(("manifest.json", engine) for engine in ("local", "array")),
    ],
)
def test_a_full_disk_before_and_after_the_shards(
    promptcal, image_folder, fail_to_write, tmp_path, name, engine, number
):
    words = ["embed", image_folder, "--backbone", BACKBONE, "--output", tmp_path / "out", "--quiet", "--engine", engine]
    words += ["--shard-size", "20"] if engine == "array" else ["--workers", "1", "--shard-size", "20"]
    with fail_to_write(name, number):
        code, _, said = promptcal(*words)
    said = " ".join(said.split())
    assert code == 75
    assert ("Input/output error" if number == errno.EIO else "the disk is full") in said
    remedy = "check the disk" if number == errno.EIO else "free some space"
    assert f"finished shards are kept; {remedy}, then run the same command again" in said
    if name == "manifest.json":
        assert len(shards_in(tmp_path)) == 2
        assert promptcal(*words)[0] == 0
        assert (tmp_path / "out" / "manifest.json").exists()


def test_a_full_disk_while_rows_are_counted(predict, promptcal, run, tars, fail_to_write, tmp_path):
    assert predict(tars)[0] == 0
    words = ("report", run.path, "--shards", tmp_path / "out", "--output", tmp_path / "page.html", "--quiet")
    with fail_to_write("totals.json", errno.ENOSPC):
        code, _, said = promptcal(*words)
    assert code == 75
    assert "free some space, then run `promptcal report` again" in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_is_really_full(run, tars, tmp_path, workers):
    """A small file system in memory, which only the command sees; then the same command on a larger one."""
    in_namespace = ["unshare", "--map-root-user", "--mount"]
    disk, words = tmp_path / "disk", ["--workers", str(workers), "--quiet"]
    disk.mkdir()
    if shutil.which("unshare") is None or subprocess.run([*in_namespace, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no file system of one's own")
    command = shlex.join([sys.executable, "-m", "promptcal", "predict", str(run.path), str(tars), "--output", "."])
    command += " " + shlex.join(words)
    script = f"""
        mount -t tmpfs -o size=28k tmpfs {disk} && cd {disk} || exit 9
        {command}; echo "exit code $?" >&2; ls -A shards entries >&2
        mount -o remount,size=1m {disk}
        {command}; echo "exit code $?" >&2
    """
    done = subprocess.run([*in_namespace, "sh", "-c", script], capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    assert "the disk is full" in said
    assert "1 of 2 shards are finished and kept; free some space, then run the same command again" in said
    first, second = said.split("exit code ")[1:]
    assert first.startswith("75 ")
    assert first.count(".parquet") == first.count(".json") == 1
    assert ".tmp" not in first
    assert second == "0"


@pytest.mark.slow
def test_a_killed_worker_and_ctrl_c(run, tars, pictures, tmp_path):
    """A killed worker exits with 75 and Ctrl-C with 130; the same command then continues."""
    for i in range(2, 40):
        write_tar(tars / f"{i}.tar", {f"{i}-{name}": content for name, content in pictures.items()})
    command = [sys.executable, "-m", "promptcal", "predict", str(run.path), str(tars), "--workers", "2", "--quiet"]
    command += ["--output", str(tmp_path / "out")]
    for stop in ("worker", "interrupt"):
        before = len(shards_in(tmp_path))
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 120
        while len(shards_in(tmp_path)) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        if stop == "worker":
            os.kill(_worker_of(process.pid), signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        said = " ".join(said.split())
        if stop == "worker":
            assert process.returncode == 75, said
            assert "a worker process was killed" in said
        else:
            assert process.returncode == 130, said
            assert "shards are finished, and the same command continues" in said
        assert "Traceback" not in said
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "All 40 shards with 1,560 rows are finished" in " ".join(done.stdout.split())


def _worker_of(parent):
    """A process that a worker pool of ``parent`` has started: a child of its fork server."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    return max(grandchild for child in children.get(parent, []) for grandchild in children.get(child, []))


@pytest.mark.timeout(60)
def test_very_many_workers(promptcal, tars, tmp_path):
    words = ("embed", tars, "--backbone", BACKBONE, "--output", tmp_path / "out", "--quiet")
    code, _, said = promptcal(*words, "--workers", "1025")
    assert code == 2
    assert "--workers must be 1 to 1,024, not 1025" in " ".join(said.split())
    with local_engine._pool(5000, None):  # no worker starts before it has work
        pass


def test_shards_need_a_folder(promptcal, run, tars, tmp_path):
    for words in ((), ("--output", tmp_path / "table.csv")):
        code, _, said = promptcal("predict", run.path, tars, *words)
        assert code == 2
        assert "give a folder for the shards as --output" in " ".join(said.replace("│", " ").split())
    code, _, said = promptcal("predict", run.path, tars / "0.tar", "--output", "s3://bucket/out", "--engine", "local")
    assert code == 2
    assert "is a URL; give a folder of this machine" in " ".join(said.split())
