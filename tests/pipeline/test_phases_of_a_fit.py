"""The time of a fit by phase: in its results, on the terminal, after a resumption, and in the estimate before."""

import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from promptcal.api import cluster, fit
from promptcal.errors import Interrupted
from promptcal.pipeline import clustering, finalize, prepare, train
from promptcal.run import RunResults
from promptcal.runtime import phases
from promptcal.runtime.files import read_torch, save_torch, write_with
from promptcal.training.loop import Loop

HEAD = "clustering.readout=head"


@pytest.fixture(scope="module")
def options(small_set, quick_settings):
    images, truth, labels = small_set
    return {
        "images": images,
        "labels": labels,
        "truth": truth,
        "n_classes": 4,
        "overrides": (*quick_settings, HEAD, "tensorboard=false"),
        "progress": False,
    }


@pytest.fixture
def slower(monkeypatch):
    """``slower(owner, name, seconds)``: a function takes longer, on the clock of the phases."""
    skipped = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped[0])
    monkeypatch.setattr(phases, "time", clock)

    def slow_down(owner, name, seconds):
        work = getattr(owner, name)

        def slow(*given, **named):
            skipped[0] += seconds
            return work(*given, **named)

        monkeypatch.setattr(owner, name, slow)

    return slow_down


def test_each_phase_is_the_time_of_its_work_and_they_add_up(tmp_path, options, slower):
    slower(prepare, "load_images", 10_000)
    slower(prepare, "build_network", 20_000)
    slower(train.Validator, "validate", 30_000)
    slower(Loop, "step", 40_000)
    slower(clustering, "embed", 50_000)
    slower(clustering, "train_heads", 60_000)
    slower(finalize, "calibrate_result", 70_000)
    slower(finalize, "make_thumbnails", 80_000)
    run = fit(**options, output=tmp_path / "run", allow_long=True)
    results = run.directory.results()
    # two epochs of three steps in two stages; heads: first result, stage 1, last epoch, result, and both compared
    heads = 6 if results.stages["affinity"].best_epoch < 2 else 5
    expected = {
        "reading": 10_000, "start-up": 20_000, "validation": 4 * 30_000, "warmup steps": 6 * 40_000,
        "affinity steps": 6 * 40_000, "embedding": (heads - 2) * 50_000, "read-out": heads * 60_000,
        "calibration": 2 * 70_000, "report": 2 * 80_000, "clustering": 0, "saving": 0, "other": 0,
    }  # fmt: skip
    assert results.phases.keys() == expected.keys()
    for name, seconds in expected.items():
        assert seconds <= results.phases[name] < seconds + 600, name
    assert sum(results.phases.values()) == pytest.approx(results.seconds, abs=0.01)


def test_a_resumed_run_has_the_phases_of_all_its_parts(tmp_path, options):
    given = {**options, "output": tmp_path / "run", "report": False, "allow_long": True}
    with pytest.MonkeyPatch.context() as patch:  # stopped before training
        patch.setattr(train, "estimate_time", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Interrupted):
            fit(**given)
    file = tmp_path / "run" / "results.json"
    written = json.loads(file.read_text())
    written["phases"]["clustering"] = 70_000.0
    file.write_text(json.dumps(written))
    with pytest.raises(Interrupted):  # stopped after a step
        fit(**given, resume=True, stop_after=1e-6)
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    state = read_torch(last)
    assert 70_000 <= state["phases"]["clustering"] < 70_600
    earlier = {**state["phases"], "warmup steps": 50_000.0}
    write_with(last, lambda temporary: save_torch({**state, "phases": earlier}, temporary))
    results = fit(**given, resume=True).directory.results()
    assert 50_000 <= results.phases["warmup steps"] < 50_600
    assert 70_000 <= results.phases["clustering"] < 70_600
    assert results.phases["read-out"] > state["phases"]["read-out"] > 0
    assert sum(results.phases.values()) == pytest.approx(results.seconds, abs=0.01)


def test_the_line_at_the_end_of_a_fit(promptcal, tmp_path, small_folder, quick_settings, monkeypatch):
    monkeypatch.setattr(phases, "_SHORTEST", 0.0)
    given = [small_folder, "--labels", small_folder / "labels.csv", "--n-classes", 4, "--output", tmp_path / "run"]
    given += [word for setting in quick_settings for word in ("--set", setting)]
    code, out, err = promptcal("fit", *given, "--no-report", "--overwrite")
    assert code == 0, err
    assert re.search(r"Took \d+ s\nResults in", out)
    assert "Training on cpu\n" in err
    code, out, err = promptcal("fit", *given, "--no-report", "--overwrite", "--verbose")
    assert code == 0, err
    assert "Training on cpu in " in err
    line = " ".join(out[out.index("Took ") : out.index("Results in")].split())
    assert line.startswith("Took ")
    assert "warmup steps " in line
    assert "About " in err
    assert "left: training with validation, then embedding, clustering and read-out" in " ".join(err.split())


def test_features_have_phases_too(tmp_path):
    random = np.random.default_rng(0)
    features = np.eye(4, 16).repeat(20, axis=0) + random.normal(size=(80, 16)) / 10
    labels = [str(i // 20) if i < 40 and i % 2 else "" for i in range(80)]
    run = cluster(features=features, labels=labels, n_classes=4, output=tmp_path / "run", progress=False)
    spent = run.directory.results().phases
    assert spent.keys() >= {"start-up", "reading", "clustering", "read-out", "calibration", "report"}


def test_results_of_earlier_versions_have_no_phases(tmp_path):
    file = tmp_path / "results.json"
    file.write_text('{"method": "gcd", "seconds": 12.3}')
    assert RunResults.read(file).phases == {}


def test_the_estimate_includes_what_follows_training(tmp_path, options, monkeypatch, slower):
    estimates = []

    def stop(estimate, consent, session):
        estimates.append(estimate.seconds_left())
        raise Interrupted("enough", 1)

    monkeypatch.setattr(train, "has_consent", stop)
    slower(clustering, "embed", 50_000)
    slower(clustering, "train_heads", 60_000)
    slower(finalize, "calibrate_result", 70_000)
    slower(finalize, "make_thumbnails", 80_000)
    with pytest.raises(Interrupted):
        fit(**options, output=tmp_path / "run", report=False)
    # embedded and clustered: the result, stage 1, the last epoch; the comparison clusters two more times
    after = 3 * 50_000 + 5 * 60_000 + 70_000 + 80_000
    assert after <= estimates[0] < after + 1000
