"""A full or read-only disk: existing files stay intact, and the message says what to do."""

import errno
import subprocess
from contextlib import contextmanager, suppress

import pytest
import torch
from harness import STREAMED, Fault, leftovers
from tensorboard.summary.writer.record_writer import RecordWriter

from promptcal.runtime.files import read_torch


def test_no_space_for_a_checkpoint(scene, expected, outcome):
    code, words = scene.run("--no-report", fault=Fault("checkpoint", "fill_the_disk", nth=2))
    assert code == 2
    assert "Traceback" not in words
    assert "File too large" in words
    assert "the checkpoint after warmup, epoch 1 is kept" in words
    assert "--resume" in words
    assert leftovers(scene.output) == []
    assert read_torch(scene.output / "checkpoints" / "last.pt")["position"]["epoch"] == 1
    code, words = scene.run("--resume", "--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected


@pytest.mark.parametrize("operation", ["write", "flush", "close"])
def test_no_space_for_tensorboard(promptcal, scene, monkeypatch, operation):
    """Its own thread fails, too, and prints nothing."""

    def fail(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordWriter, operation, fail)
    words = ["fit", scene.images, "--output", scene.output, "--labels", scene.images / "labels.csv", "--n-classes", 4]
    words += [
        "--quiet",
        "--no-report",
        *(w for s in (*STREAMED, "data.store=memory", "tensorboard=true") for w in ("--set", s)),
    ]
    code, _, said = promptcal(*words)
    assert code == 2
    assert "Traceback" not in said
    assert "No space left on device" in said
    assert "run the same command with --resume" in said


def test_no_space_for_the_cache_of_decoded_images(scene, expected, outcome):
    scene.settings = (*scene.settings, "data.store=mapped")
    code, words = scene.run("--no-report", fault=Fault("cache", "fill_the_disk"))
    assert code == 2
    assert "Traceback" not in words
    assert "promptcal-cache" in words
    assert "run the same command again" in " ".join(words.split())
    assert leftovers(scene.place) == []
    code, words = scene.run("--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected


@contextmanager
def mounted(folder, options):
    """A separate file system; the test is skipped where it cannot be mounted."""
    folder.mkdir()
    try:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if made.returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(filler):
    """Write until there is no space left."""
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.slow
def test_a_full_disk(scene, expected, outcome):
    disk = scene.place / "disk"
    scene.output = disk / "run"
    with mounted(disk, "size=96m"):
        process = scene.start("--no-report")
        assert process.wait_for("checkpoint", 2)
        fill(disk / "filler")
        code, words = process.end()
        assert code == 2, words
        assert "No space left on device" in words
        assert "is kept in" in words
        (disk / "filler").unlink()
        assert leftovers(disk) == []
        assert read_torch(scene.output / "checkpoints" / "last.pt")["stage"] in ("warmup", "affinity")
        code, words = scene.run("--resume", "--no-report")
        assert code == 0, words
        assert outcome(scene.output) == expected


def test_a_read_only_disk(scene):
    with mounted(scene.output, "ro,size=1m"):
        code, words = scene.run()
    assert code == 2
    assert f"{scene.output} cannot be written to (Read-only file system); choose another" in " ".join(words.split())


def test_an_output_below_a_file(scene):
    (scene.place / "file").write_text("not a folder")
    scene.output = scene.place / "file" / "run"
    code, words = scene.run()
    assert code == 2
    assert "cannot be written to (Not a directory); choose another" in " ".join(words.split())


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_rejected_and_the_previous_one_named(scene, expected, outcome):
    scene.run("--no-report", fault=Fault("checkpoint", "kill_while_writing", "last.pt", 4))
    last, previous = (scene.output / "checkpoints" / name for name in ("last.pt", "previous.pt"))
    damage(last)
    torch.load(last, weights_only=True)  # does not notice
    code, words = scene.run("--resume", "--no-report")
    words = " ".join(words.split())
    assert code == 2
    assert f"the checkpoint {last} is damaged" in words
    assert (
        f"the previous checkpoint (warmup, epoch 2) is intact: to resume from it, rename {previous} to last.pt" in words
    )
    previous.replace(last)
    code, words = scene.run("--resume", "--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected


def test_no_intact_checkpoint(scene):
    scene.run("--no-report", fault=Fault("checkpoint", "kill_while_writing", "last.pt", 2))
    damage(scene.output / "checkpoints" / "last.pt")
    code, words = scene.run("--resume")
    assert code == 2
    assert "there is no intact previous checkpoint, so start the run again with --overwrite" in " ".join(words.split())
