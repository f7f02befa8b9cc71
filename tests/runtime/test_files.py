"""Files are written completely or not at all, and damaged files are detected."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from promptcal.runtime import files
from promptcal.runtime.files import (
    copy_file,
    entries_below,
    read_safetensors,
    read_torch,
    remove_leftovers,
    save_torch,
    temporary_mining_streams,
    write_csv,
    write_folder,
    write_json,
    write_rows,
    write_safetensors,
    write_text,
    write_with,
)
from promptcal.runtime.reading import is_special, read_bytes


def half_written(temporary):
    temporary.write_text("half")
    raise RuntimeError("the disk is full")


def interrupted(temporary):
    temporary.write_text("half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("write", [half_written, interrupted, lambda temporary: 1 / 0, lambda temporary: None])
@pytest.mark.parametrize("old", [None, "old content"])
def test_a_failed_write_changes_nothing(tmp_path, write, old):
    target = tmp_path / "a.txt"
    if old is not None:
        target.write_text(old)
    with pytest.raises((RuntimeError, KeyboardInterrupt, ZeroDivisionError, FileNotFoundError)):
        write_with(target, write)
    assert [p.name for p in tmp_path.iterdir()] == ([] if old is None else ["a.txt"])
    assert old is None or target.read_text() == old


def test_a_failed_flush_keeps_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_text(target, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"


def test_the_target_is_replaced_only_when_the_new_file_is_complete(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write(temporary):
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert target.read_text() == "old"

    write_with(target, write)
    assert target.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_copy_that_another_process_takes_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    (tmp_path / "source").write_text("new")
    made, copyfile = [], shutil.copyfile

    def copy(source, target):
        copyfile(source, target)
        if not made:
            remove_leftovers(tmp_path)
        made.append(target)

    monkeypatch.setattr(shutil, "copyfile", copy)
    copy_file(tmp_path / "source", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert len(set(made)) == 2
    with pytest.raises(FileNotFoundError):
        copy_file(tmp_path / "absent", tmp_path / "b.txt")


def test_folders_that_another_process_removes_are_passed_over(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    found = []
    for place in entries_below(tmp_path):
        found.append(place.name)
        if len(found) == 2:
            shutil.rmtree(tmp_path / found[0])
            shutil.rmtree(tmp_path / found[1])
    assert sorted(found) == ["a", "b"]
    with pytest.raises(FileNotFoundError):
        list(entries_below(tmp_path / "absent"))


def test_what_is_special(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    assert [is_special(tmp_path / name) for name in ("pipe", "link")] == [True, True]
    assert [is_special(tmp_path / name) for name in ("loop", "file", "absent", "file/x", ".")] == [False] * 5


def test_text_json_and_tensors_read_back(tmp_path):
    write_text(tmp_path / "a.txt", "grüße\n")
    write_json(tmp_path / "a.json", {"name": "猫", "n": [1, 2]})
    tensors = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.ones(2, requires_grad=True)}
    write_safetensors(tmp_path / "a.safetensors", tensors)
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "grüße\n"
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"name": "猫", "n": [1, 2]}
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], tensors[k]) for k in tensors)


@pytest.mark.parametrize("link", [True, False])
def test_the_previous_file_can_be_kept(tmp_path, monkeypatch, link):
    if not link:

        def refuse(*arguments):
            raise OSError("hard links are not supported")

        monkeypatch.setattr(os, "link", refuse)
    target, kept = tmp_path / "a.txt", tmp_path / "kept.txt"
    for text in ("first", "second", "third"):
        write_with(target, lambda temporary, text=text: temporary.write_text(text), keep_as=kept)
    assert (target.read_text(), kept.read_text()) == ("third", "second")
    with pytest.raises(RuntimeError):
        write_with(target, half_written, keep_as=kept)
    assert (target.read_text(), kept.read_text()) == ("third", "second")


def test_only_leftovers_are_removed(tmp_path):
    (tmp_path / "sub").mkdir()
    left = [temporary_mining_streams(tmp_path / "a.txt"), temporary_mining_streams(tmp_path / "sub" / "b")]
    others = [
        tmp_path / name for name in ("a.txt", ".tmp", ".hidden.tmp", "sub/.a.0123456789.tmp", "x.0123456789ab.tmp")
    ]
    for path in (*left, *others):
        path.write_text("")
    remove_leftovers(tmp_path)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_damaged_tensors_are_detected(tmp_path, dtype):
    tensors = {"a": torch.arange(600).view(3, 200).to(dtype), "none": torch.empty(0, dtype=dtype)}
    written = tmp_path / "a.safetensors"
    write_safetensors(written, tensors)
    assert all(torch.equal(found, tensors[name]) for name, found in read_safetensors(written).items())
    flip(written, -50)
    load_file(written)  # does not detect it
    with pytest.raises(OSError, match="checksum"):
        read_safetensors(written)
    os.truncate(written, 100)
    with pytest.raises(OSError, match="a.safetensors"):
        read_safetensors(written)


def test_damaged_checkpoints_are_detected(tmp_path):
    path = tmp_path / "a.pt"
    save_torch({"a": torch.arange(1000)}, path)
    assert torch.equal(read_torch(path)["a"], torch.arange(1000))
    flip(path, path.stat().st_size // 2)
    torch.load(path, weights_only=True)  # does not detect it
    with pytest.raises(OSError, match="checksum"):
        read_torch(path)
    os.truncate(path, 3000)
    with pytest.raises(OSError, match="a.pt"):
        read_torch(path)
    with pytest.raises(FileNotFoundError):
        read_torch(tmp_path / "absent.pt")


def test_a_full_disk_is_an_os_error(tmp_path):
    full = "/dev/full"
    if not os.path.exists(full):
        pytest.skip("there is no /dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_with(tmp_path / "a.pt", lambda temporary: (temporary.symlink_to(full), save_torch([1], temporary)))
    assert list(tmp_path.iterdir()) == []


def test_pipes_and_devices_are_not_replaced(tmp_path):
    """Nothing is written to a device here: a superuser would lose it if this did not hold."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="it is a pipe or a device, which would be replaced"):
            write_text(tmp_path / name, "x")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
    assert all(is_special(Path(name)) for name in ("/dev/null", "/dev/stdout", "/dev/new.csv"))
    assert not any(map(is_special, (tmp_path, tmp_path / "new.csv", Path("/dev/shm/new.csv"))))


def test_a_folder_is_complete_or_absent(tmp_path):
    write_folder(tmp_path / "a", lambda folder: (folder / "b").write_text("c"))
    assert (tmp_path / "a" / "b").read_text() == "c"
    with pytest.raises(ZeroDivisionError):
        write_folder(tmp_path / "d", lambda folder: 1 / 0)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_weights_have_the_permissions_of_other_files(tmp_path):
    write_safetensors(tmp_path / "weights.safetensors", {"a": torch.ones(2)})
    write_text(tmp_path / "text", "")
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "text").stat().st_mode


@pytest.mark.parametrize("rows_at_once", [1, 3, 1024])
def test_line_ends_in_cells(tmp_path, monkeypatch, rows_at_once):
    """A file name may have them, and the csv module does not quote a carriage return before Python 3.13."""
    monkeypatch.setattr(files, "_ROWS_AT_ONCE", rows_at_once)
    cells = ["a\rb", "a\nb", "a\r\nb", "\r", "a", 'a"\r', "1"]
    write_csv(tmp_path / "a.csv", ["name", "n"], [[cell, 1] for cell in cells])
    write_rows(tmp_path / "b.csv", ["name", "n"], [[cell, 1] for cell in cells])
    for name in ("a.csv", "b.csv"):
        with (tmp_path / name).open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == [["name", "n"], *([cell, "1"] for cell in cells)]
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.timeout(30)
def test_a_pipe_is_not_read(tmp_path):
    """Nobody writes to it, so a read would never end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe or a device"):
        read_bytes(tmp_path / "pipe", 100)
