"""The demo keeps its promise: stage 2 clearly above k-means, from the command a newcomer types."""

import json
import subprocess
import sys

import numpy as np
import pytest

from promptcal.api import demo, results
from promptcal.data import embedded_set, label_half


def test_demo_runs_the_whole_method_on_the_embedded_set(tmp_path, quick_settings):
    shortened = [s for s in quick_settings if not s.startswith(("data.", "affinity.k"))]
    run = demo(
        output=tmp_path / "run",
        overrides=[*shortened, "data.batch_size=64", "warmup.epochs=1", "affinity.epochs=1", "selection.by=last"],
        progress=False,
    )
    assignments = run.assignments()
    data = embedded_set("train")
    labelled = label_half(data.labels, range(5))
    assert np.array_equal(assignments.labelled, labelled)
    assert labelled.sum() == 375
    assert assignments.names[:5] == data.classes[:5]
    assert {"kmeans", "semi_supervised_kmeans", "warmup", "affinity"} <= results(run).keys()
    assert len(list((tmp_path / "run" / "sheets").glob("*-new-*.png"))) == 5


@pytest.mark.slow
def test_a_demo_goes_on_with_what_was_named_in_its_report(tmp_path, quick_settings):
    shortened = [s for s in quick_settings if not s.startswith("affinity.k")]
    run = demo(output=tmp_path / "run", overrides=[*shortened, "warmup.epochs=0", "affinity.epochs=0"], progress=False)
    assignments = run.assignments()
    frogs = [name for name, c in zip(assignments.paths, assignments.clusters, strict=True) if c == 6][:5]
    (tmp_path / "labels.csv").write_text("path,label\n" + "".join(f"{name},frog\n" for name in frogs))
    onward = demo(
        output=tmp_path / "onward", labels=tmp_path / "labels.csv", start_from=run.path, progress=False,
        overrides=["affinity.epochs=0"],
    )  # fmt: skip
    assert onward.names[:5] == assignments.names[:5]
    assert (onward.names[6], onward.known[6]) == ("frog", True)
    assert int(onward.assignments().labelled.sum()) == 375 + 5
    assert "accuracy" not in results(onward).get("kmeans", {})


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stage_2_beats_kmeans_on_all_and_new(tmp_path, seed):
    command = [sys.executable, "-m", "promptcal", "demo", "--output", str(tmp_path / "run"), "--seed", str(seed)]
    subprocess.run(command, check=True)
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    baseline, stage_2 = found["kmeans"]["accuracy"], found["affinity"]["accuracy"]
    # README: +4.4 to +5.7 points on All and +2.8 to +4.8 on New; half a point for another machine's arithmetic
    assert stage_2["all"] > baseline["all"] + 0.039
    assert stage_2["new"] > baseline["new"] + 0.023
