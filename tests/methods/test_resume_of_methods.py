"""Methods that carry more than weights from step to step go on exactly where they were stopped."""

import json
import signal

import numpy as np
import pytest
from safetensors.torch import load_file

from promptcal.errors import Interrupted
from promptcal.training.loop import Loop
from promptcal.verbs import fit


def outcome(run_folder):
    records = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "records": [{k: v for k, v in record.items() if k != "seconds"} for record in records],
        "weights": {k: v.numpy().tobytes() for k, v in load_file(run_folder / "model.safetensors").items()},
        "embeddings": np.load(run_folder / "embeddings.npy").tobytes(),
        "assignments": (run_folder / "assignments.csv").read_text(),
    }


@pytest.mark.parametrize(
    ("method", "stop_at"),
    [
        ("orca", 4),  # in the second epoch, whose margin comes from the first
        ("uno", 2),  # in the first, with losses by head
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(monkeypatch, tmp_path, small_set, quick_settings, method, stop_at):
    images, _, labels = small_set
    arguments = {
        "images": images, "labels": labels, "n_classes": 4, "method": method, "progress": False,
        "overrides": (*quick_settings, f"{method}.epochs=2", "tensorboard=no"),
    }  # fmt: skip
    fit(**arguments, output=tmp_path / "whole")
    step = Loop.step
    done = 0

    def step_then_interrupt(self, *args):
        nonlocal done
        step(self, *args)
        done += 1
        if done == stop_at:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Loop, "step", step_then_interrupt)
    with pytest.raises(Interrupted, match="--resume"):
        fit(**arguments, output=tmp_path / "run")
    fit(**arguments, output=tmp_path / "run", resume=True)
    assert done == 6  # nothing was computed twice
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
