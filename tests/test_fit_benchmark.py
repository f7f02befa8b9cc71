"""benchmarks/fit.py at a tiny size: a whole fit of random images, and the table of its phases."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL = (
    "model.head_hidden=16", "model.head_bottleneck=8", "model.head_prototypes=32", "data.batch_size=16",
    "clustering.n_init=2", "selection.n_init=2", "affinity.k=5", "affinity.memory=64", "affinity.negatives=32",
    "tensorboard=false", "clustering.readout=kmeans",
)  # fmt: skip


@pytest.fixture(scope="module")
def script():
    """The script's module; it imports the ones beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import fit

        yield fit
        for name in ("fit", "step", "measuring", "literal"):
            sys.modules.pop(name, None)


def test_random_images_have_classes_and_labels(script):
    images, labels = script.random_images(script.Images(24, 6, 3, 20))
    assert images.shape == (24, 20, 20, 3)
    assert np.unique(labels).tolist() == [-1, 0, 1, 2]
    assert (labels >= 0).sum() == 6  # half of the twelve images of known classes
    assert script.IMAGES["cub"].n_images == 5994


@pytest.mark.slow
def test_a_whole_fit_and_its_table(script, tmp_path, capsys):
    size, network = script.Images(40, 4, 2, 24), script.Network("vit_tiny_patch16_224", 32)
    run = script.fit_random(size, network, (2, 1), tmp_path, "cpu", SMALL)
    assert script.trained_steps(run) == {"warmup": 4, "affinity": 2}  # 40 images in batches of 16
    rows = {row[0]: row for row in script.phase_rows(run, speed=0.05)}
    phases = run.directory.results().phases
    assert [*rows][:-1] == [*phases]
    assert rows["all"][1] == pytest.approx(sum(phases.values()), abs=0.01)
    _, seconds, _, n_steps, once, floor, ratio = rows["affinity steps"]
    assert (n_steps, once) == (2, pytest.approx(500 * seconds))
    assert ratio == pytest.approx(once / floor)
    width, tokens, views = 192, 2 * 2 + 1 + run.config.model.prompts, 32
    forward = 12 * views * tokens * (24 * width**2 + 4 * tokens * width) / 1e12
    passes = 3.13 + (run.config.model.train_blocks - 1) / 12
    assert floor == pytest.approx(1000 * passes * forward / 0.05, rel=1e-6)
    script.report("tiny", run, torch.device("cpu"), float("nan"))
    assert "| affinity steps |" in capsys.readouterr().out


def test_the_speed_of_this_cpu_is_plausible(script):
    assert 1e-4 < script.tflops(torch.device("cpu"), size=256) < 100
