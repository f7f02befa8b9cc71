"""The same seed gives the same run, in two processes and with --deterministic, which changes no setting for good."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from promptcal.api import fit
from promptcal.pipeline import finalize
from promptcal.runtime import device

SMALL = ("model.image_size=8", "warmup.epochs=1", "affinity.epochs=1", "tensorboard=false")


def global_settings():
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


SCRIPT = """
import sys
import numpy as np
from promptcal.api import fit
given = np.load(sys.argv[1])
fit(images=given["images"], labels=given["labels"], n_classes=4, output=sys.argv[2], overrides=sys.argv[3:],
    progress=False)
"""


@pytest.mark.slow  # imports everything twice; tests/faults compares processes too
def test_two_processes_give_the_same_run(tmp_path, small_set, quick_settings, outcome):
    images, _, labels = small_set
    np.savez(tmp_path / "given.npz", images=images, labels=labels)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "given.npz")]
    settings = (*quick_settings, *SMALL)
    for run, hash_seed in (("a", "1"), ("b", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, str(tmp_path / run), *settings], check=True, env=environment)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


def test_deterministic_changes_nothing_on_a_cpu_and_nothing_afterwards(
    monkeypatch, tmp_path, small_set, quick_settings, outcome
):
    images, _, labels = small_set
    before, during = global_settings(), []
    write = finalize.write_result
    monkeypatch.setattr(finalize, "write_result", lambda *given: (during.append(global_settings()), write(*given)))
    for deterministic in (False, True):
        fit(
            images=images,
            labels=labels,
            n_classes=4,
            output=tmp_path / str(deterministic),
            overrides=(*quick_settings, *SMALL, "device=cpu"),
            deterministic=deterministic,
            progress=False,
            report=False,
        )
        assert global_settings() == before
    assert during[0] == before
    assert during[1] == {"algorithms": True, "warn only": False, "cudnn": (True, False), "cublas": ":4096:8"}
    assert outcome(tmp_path / "False") == outcome(tmp_path / "True")


def test_settings_are_restored_after_an_error(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    before, during = global_settings(), {}

    def fail():
        with device.deterministic_mode(True):
            during.update(global_settings())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during["algorithms"]
    assert during["cublas"] == ":16:8"  # the user's own choice
    assert global_settings() == before


@pytest.mark.parametrize("command", ["fit", "demo", "benchmark"])
def test_the_command_line_offers_it(promptcal, command):
    assert "--deterministic" in promptcal(command, "--help")[1]
