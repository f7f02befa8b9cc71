"""Files are whole or absent, whatever happens while they are written."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from promptcal.files import write_json, write_safetensors, write_text, write_with


def half_written(temporary):
    temporary.write_text("half")
    raise RuntimeError("the disk is full")


def interrupted(temporary):
    temporary.write_text("half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("write", [half_written, interrupted, lambda temporary: 1 / 0, lambda temporary: None])
@pytest.mark.parametrize("old", [None, "old content"])
def test_a_failed_write_leaves_the_folder_as_it_was(tmp_path, write, old):
    target = tmp_path / "a.txt"
    if old is not None:
        target.write_text(old)
    with pytest.raises((RuntimeError, KeyboardInterrupt, ZeroDivisionError, FileNotFoundError)):
        write_with(target, write)
    assert [p.name for p in tmp_path.iterdir()] == ([] if old is None else ["a.txt"])
    assert old is None or target.read_text() == old


def test_a_failed_rename_leaves_the_old_file_alone(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_text(target, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"


def test_the_target_is_never_seen_half_written(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write(temporary):
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert target.read_text() == "old"

    write_with(target, write)
    assert target.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


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
