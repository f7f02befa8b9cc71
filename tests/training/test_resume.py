"""A run that is stopped or killed and then resumed is bit-equal to an uninterrupted run."""

import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from promptcal.api import fit
from promptcal.errors import ConfigError, Interrupted, RunError
from promptcal.models import CosineClassifier
from promptcal.run import Run
from promptcal.runtime.files import read_torch, save_torch, write_with
from promptcal.runtime.interrupts import StopRequest
from promptcal.training.loop import Loop


@pytest.fixture(scope="module")
def arguments(small_folder, quick_settings):
    return {
        "images": small_folder,
        "labels": small_folder / "labels.csv",
        "n_classes": 4,
        "overrides": quick_settings,
        "progress": False,
        "report": False,
        "seed": 3,
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, arguments, outcome):
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    fit(**arguments, output=output)
    return outcome(output)


STEPS = 3 * 2 * 2  # 48 images in batches of 16, two epochs in each of two stages


@pytest.mark.parametrize("stop_at", [3, 6, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 5, 7, 12))])
def test_stopped_between_any_two_steps_and_resumed(
    interrupted_at, outcome, tmp_path, arguments, uninterrupted, stop_at
):
    done = interrupted_at(stop_at)
    with pytest.raises(Interrupted, match="--resume") as stopped:
        fit(**arguments, output=tmp_path / "run")
    assert stopped.value.exit_code == 130
    fit(**arguments, output=tmp_path / "run", resume=True)
    assert len(done) == STEPS  # nothing was computed twice
    assert outcome(tmp_path / "run") == uninterrupted


def wait_for_records(run_folder, n, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        metrics = run_folder / "metrics.jsonl"
        if metrics.exists() and len(metrics.read_text().splitlines()) >= n:
            return
        time.sleep(0.01)
    pytest.fail(f"no {n} records: {process.communicate()}")


def start(arguments, output):
    command = [sys.executable, "-m", "promptcal", "fit", str(arguments["images"]), "--output", str(output)]
    command += ["--labels", str(arguments["labels"]), "--n-classes", "4", "--seed", "3", "--quiet", "--no-report"]
    for setting in arguments["overrides"]:
        command += ["--set", setting]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow  # tests/faults sends the same signals to processes that start faster
@pytest.mark.parametrize(
    ("number", "after_records", "code"),
    [(signal.SIGKILL, 1, -9), (signal.SIGKILL, 3, -9), (signal.SIGTERM, 1, 143), (signal.SIGINT, 2, 130)],
)
def test_signalled_process_is_resumed(tmp_path, arguments, uninterrupted, outcome, number, after_records, code):
    output = tmp_path / "run"
    with start(arguments, output) as process:
        wait_for_records(output, after_records, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    fit(**arguments, output=output, resume=True)
    assert outcome(output) == uninterrupted


def test_resume_refuses_other_settings_or_images(monkeypatch, tmp_path, arguments, small_set):
    def interrupt(self, *args):
        signal.raise_signal(signal.SIGINT)
        self.position.step += 1

    monkeypatch.setattr(Loop, "step", interrupt)
    with pytest.raises(Interrupted):
        fit(**arguments, output=tmp_path / "run")
    with pytest.raises(RunError, match="unfinished run.*--resume"):
        fit(**arguments, output=tmp_path / "run")
    changed = {**arguments, "overrides": (*arguments["overrides"], "loss.beta=0.5")}
    with pytest.raises(RunError, match="loss.beta=0.6"):
        fit(**changed, output=tmp_path / "run", resume=True)
    images, _, labels = small_set
    with pytest.raises(RunError, match="other images or labels"):
        fit(**{**arguments, "images": images, "labels": labels}, output=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_another_seed_gives_another_run(tmp_path, arguments, uninterrupted, outcome):
    fit(**{**arguments, "seed": 4}, output=tmp_path / "run")
    assert outcome(tmp_path / "run")["weights"] != uninterrupted["weights"]


def test_stopped_by_the_clock_and_resumed(outcome, tmp_path, arguments, uninterrupted):
    with pytest.raises(Interrupted, match="stopped in warmup, epoch 1 of 2, step 1; .*--resume") as stopped:
        fit(**arguments, output=tmp_path / "run", stop_after=1e-6)
    assert stopped.value.exit_code == 75
    with pytest.raises(Interrupted, match="epoch 1 of 2, step 2"):  # every part makes progress, however short it is
        fit(**arguments, output=tmp_path / "run", stop_after=1e-6, resume=True)
    fit(**arguments, output=tmp_path / "run", stop_after=60, resume=True)
    assert outcome(tmp_path / "run") == uninterrupted


def test_the_seconds_of_a_run_are_those_of_all_its_parts(tmp_path, arguments):
    with pytest.raises(Interrupted):
        fit(**arguments, output=tmp_path / "run", stop_after=1e-6)
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    state = read_torch(last)
    assert 0 < sum(state.pop("phases").values()) < 1000
    write_with(last, lambda temporary: save_torch({**state, "seconds": 1000.0}, temporary))  # as version 0.2 wrote it
    with pytest.raises(Interrupted):
        fit(**arguments, output=tmp_path / "run", stop_after=1e-6, resume=True)
    assert 1000 < sum(read_torch(last)["phases"].values()) < 2000
    fit(**arguments, output=tmp_path / "run", resume=True)
    assert 1000 < Run(tmp_path / "run").directory.results().seconds < 2000


def test_minutes_must_be_positive(tmp_path, arguments):
    with pytest.raises(ConfigError, match="--stop-after takes minutes above 0, at most 1,000,000, not 0"):
        fit(**arguments, output=tmp_path / "run", stop_after=0)


@pytest.fixture(scope="module")
def warmed_up(tmp_path_factory, arguments):
    output = tmp_path_factory.mktemp("warmed-up") / "run"
    fit(**arguments, output=output, method="promptcal-warmup")
    return output


@pytest.mark.slow
def test_a_shared_warmup_gives_the_same_result(interrupted_at, outcome, tmp_path, arguments, uninterrupted, warmed_up):
    done = interrupted_at(3)
    with pytest.raises(Interrupted):
        fit(**arguments, output=tmp_path / "run", warmup_from=warmed_up)
    fit(**arguments, output=tmp_path / "run", warmup_from=warmed_up, resume=True)
    assert len(done) == STEPS // 2  # stage 2 only
    assert outcome(tmp_path / "run") == uninterrupted
    third = fit(
        **arguments, output=tmp_path / "third", warmup_from=tmp_path / "run"
    )  # a copied stage can be copied again
    assert outcome(third.path) == uninterrupted


def test_a_run_stopped_in_its_own_warmup_continues_that(
    interrupted_at, outcome, tmp_path, arguments, uninterrupted, warmed_up
):
    done = interrupted_at(2)
    with pytest.raises(Interrupted):
        fit(**arguments, output=tmp_path / "run")
    fit(**arguments, output=tmp_path / "run", warmup_from=warmed_up, resume=True)
    assert len(done) == STEPS
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_warmup_is_shared_by_runs_that_differ_only_in_stage_2(tmp_path, arguments, warmed_up):
    later = {**arguments, "overrides": [*arguments["overrides"], "affinity.k=3", "loss.beta=0.2"]}
    run = fit(**later, output=tmp_path / "run", warmup_from=warmed_up)
    assert [record["stage"] for record in run.records()] == ["warmup"] * 2 + ["affinity"] * 2
    later["overrides"].append("variant=paper")
    with pytest.raises(RunError, match="prompt_pooling=mean"):  # which stage 1 uses
        fit(**later, output=tmp_path / "paper", warmup_from=warmed_up)


def test_a_warmup_that_cannot_be_reused(tmp_path, arguments, warmed_up, common_settings):
    with pytest.raises(RunError, match="no finished stage warmup to reuse"):
        fit(**arguments, output=tmp_path / "run", warmup_from=tmp_path)
    with pytest.raises(RunError, match="trained its stage warmup with seed=3"):
        fit(**{**arguments, "seed": 4}, output=tmp_path / "run", warmup_from=warmed_up)
    with pytest.raises(RunError, match="other images or labels"):
        fit(**{**arguments, "labels": {"000.png": "a"}}, output=tmp_path / "run", warmup_from=warmed_up)
    with pytest.raises(ConfigError, match="which gcd does not have"):
        fit(**{**arguments, "overrides": common_settings}, method="gcd", output=tmp_path / "run", warmup_from=warmed_up)
    with pytest.raises(RunError, match="cannot reuse its own first stage"):
        fit(**arguments, output=warmed_up, warmup_from=warmed_up, overwrite=True)
    with pytest.raises(ConfigError, match="give one of them"):
        fit(
            images=arguments["images"], output=tmp_path / "run", start_from=warmed_up, warmup_from=warmed_up,
            labels=arguments["labels"], progress=False,
        )  # fmt: skip
    assert (warmed_up / "model.safetensors").exists()


@pytest.mark.slow
def test_a_classifier_starts_at_the_clusters_of_stage_1_and_is_resumed(interrupted_at, outcome, tmp_path, arguments):
    settings = [*arguments["overrides"], "selection.by=last"]  # no labels are held out: the clusters are the run's own
    warmed_up = fit(**{**arguments, "overrides": settings}, method="promptcal-warmup", output=tmp_path / "warm-up")
    parametric = {**arguments, "overrides": [*settings, "affinity.classifier=0.5"], "warmup_from": warmed_up.path}
    starts = []
    initialize_from = CosineClassifier.initialize_from
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            CosineClassifier, "initialize_from", lambda self, c: (starts.append(c.clone()), initialize_from(self, c))
        )
        fit(**parametric, output=tmp_path / "whole")
    nearest = torch.cdist(starts[0], warmed_up.centroids.cpu()).min(dim=1)
    assert nearest.values.max() < 1e-5
    assert nearest.indices[:2].tolist() == [0, 1]  # known classes come first

    interrupted_at(4)
    with pytest.raises(Interrupted):
        fit(**parametric, output=tmp_path / "run")
    fit(**parametric, output=tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    without = {**arguments, "overrides": settings, "warmup_from": tmp_path / "run"}  # its classifier is not copied
    fit(**without, output=tmp_path / "without")
    fit(
        images=arguments["images"], output=tmp_path / "on", start_from=tmp_path / "run", labels=arguments["labels"],
        overrides=["affinity.classifier=0"], progress=False,
    )  # fmt: skip
    assert "classifier.prototypes" not in load_file(tmp_path / "on" / "model.safetensors")


def test_only_a_second_ctrl_c_stops_at_once():
    with StopRequest().listening() as stop, stop.waiting():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 143
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
