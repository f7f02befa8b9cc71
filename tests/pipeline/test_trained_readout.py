"""A run whose categories are assigned by the trained read-out: predict, export, names, and a continued run."""

import csv
import importlib.util
import io
import re
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

from promptcal.api import benchmark, demo, export, fit, make_report, name
from promptcal.cli.run_output import categories_table, columns_legend, show_run
from promptcal.errors import RunError
from promptcal.methods import resolve
from promptcal.pipeline.inputs import settings_layers
from promptcal.pipeline.request import FitRequest
from promptcal.run import Run, RunDirectory
from promptcal.runtime import files

HEAD = "clustering.readout=head"


@pytest.fixture(scope="module")
def run(tmp_path_factory, fit_apes_and_bees):
    return fit_apes_and_bees(tmp_path_factory.mktemp("readout") / "run", HEAD)


def unlabelled(found):
    return ~np.array(found.labelled)


@pytest.mark.parametrize(("protocol", "readout"), [("default", "head"), ("published", "kmeans")])
def test_it_is_the_default_of_fit_but_not_of_the_published_protocol(protocol, readout):
    request = FitRequest(images="photos", output="run", n_classes=4, overrides=[f"protocol={protocol}"])
    assert resolve(settings_layers(request)).clustering.readout == readout
    other = FitRequest(images="photos", output="run", n_classes=4, overrides=["clustering.readout=kmeans"])
    assert resolve(settings_layers(other)).clustering.readout == "kmeans"


def test_it_is_the_default_of_the_demo_but_not_of_a_benchmark(few_images, tmp_path, quick_settings):
    settings = [s for s in quick_settings if "readout" not in s]
    common = {"progress": False, "report": False, "overrides": [*settings, "warmup.epochs=0", "affinity.epochs=0"]}
    assert demo(output=tmp_path / "demo", **common).config.clustering.readout == "head"
    assert benchmark(name="mini", output=tmp_path / "mini", **common).config.clustering.readout == "kmeans"


def test_predict_gives_what_the_fit_assigned(run, apes_and_bees):
    found = run.assignments()
    again = run.predict(apes_and_bees.images, progress=False, accept_all=True)
    assert again.paths == found.paths
    chosen = unlabelled(found)
    assert np.array_equal(again.clusters[chosen], found.clusters[chosen])
    assert again.confidence[chosen] == pytest.approx(found.confidence[chosen], abs=1e-3)
    assert run.calibration.scores == "outputs"
    assert (run.calibration.basis, run.calibration.n > 0) == ("held-out", True)


def test_stability_is_a_column_of_the_assignments(run):
    with run.directory.assignments_file.open(newline="") as file:
        written = [float(row["stability"]) for row in csv.DictReader(file)]
    assert written == pytest.approx(run.assignments().stability, abs=1e-4)
    assert all(0 <= value <= 1 for value in written)


def test_without_held_out_labels_a_fifth_is_left_out_to_calibrate(apes_and_bees, fit_apes_and_bees, tmp_path):
    found = fit_apes_and_bees(tmp_path / "run", HEAD, "data.validation_fraction=0", n_classes=4)
    assert found.calibration.basis == "left-out"
    assert 0 < found.calibration.n < len(apes_and_bees.labels)
    assert found.calibration.temperature >= 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_the_onnx_file_has_the_head(run, tmp_path):
    export(run=run.path, to="onnx", output=tmp_path / "model.onnx", progress=False)
    assert (tmp_path / "model.onnx").is_file()  # the export compares it with PyTorch


def test_merged_names_have_a_head_of_their_own(run, apes_and_bees, tmp_path):
    made = Run(shutil.copytree(run.path, tmp_path / "run"), "cpu")
    before = made.assignments()
    chosen = [p for p, c in zip(before.paths, before.clusters, strict=True) if c in (3, 4)]
    found = name(run=made, labels=dict.fromkeys(chosen, "goose"))
    assert len(found.merged) == 1
    now = Run(made.path, "cpu")
    assert now.head.weight.shape[0] == len(now.names) == 4
    predicted = now.predict(apes_and_bees.images, progress=False, accept_all=True)
    assert (predicted.clusters == now.assignments().clusters).mean() > 0.9


def test_a_continued_run_starts_from_the_categories(run, apes_and_bees, tmp_path):
    found = run.assignments()
    largest = max(range(2, 5), key=lambda c: (found.clusters == c).sum())
    given = {p: "goose" for p, c in zip(found.paths, found.clusters, strict=True) if c == largest}
    again = fit(
        images=apes_and_bees.images,
        labels=given,
        start_from=run.path,
        output=tmp_path / "again",
        progress=False,
        report=False,
    )
    assert again.config.clustering.readout == "head"
    now = again.assignments()
    assert "goose" in now.names
    same = [now.categories[i] == found.categories[i] for i in range(len(found)) if found.clusters[i] != largest]
    assert np.mean(same) > 0.8
    assert now.stability is None  # a single head continues them, so there is nothing to agree with
    assert again.directory.results().stability is None


def test_a_run_without_its_head_is_refused(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    tensors = files.read_safetensors(copy / "centroids.safetensors")
    del tensors["head_bias"]
    files.write_safetensors(copy / "centroids.safetensors", tensors)
    with pytest.raises(RunError, match=r"centroids\.safetensors changed since the fit wrote it"):
        Run(copy, "cpu").scores(torch.from_numpy(run.embeddings()[:2]))
    RunDirectory(copy).update_info(sha256={})
    with pytest.raises(RunError, match="head_bias"):
        Run(copy, "cpu").scores(torch.from_numpy(run.embeddings()[:2]))


def test_stability_is_in_results_terminal_and_report(run, tmp_path):
    found = run.assignments()
    mean = found.stability[unlabelled(found)].mean()
    assert run.directory.results().stability == pytest.approx(mean, abs=1e-3)
    table = categories_table(found, "images")
    assert table.columns[3].header == "stability"
    assert columns_legend(table).startswith("Stability: the share of the read-out's heads")
    console = Console(record=True, file=io.StringIO(), width=1000)
    show_run(run, console, has_report=False)
    shown = console.export_text()
    assert columns_legend(table) in shown
    assert "Nearest known: the known category that looks most alike" in shown
    for cluster, cell in enumerate(table.columns[3].cells):
        members = found.stability[(found.clusters == cluster) & unlabelled(found)]
        assert cell == (f"{members.mean():.2f}" if len(members) else "-")
    page = make_report(run=run, output=tmp_path / "report.html", progress=False).path.read_text(encoding="utf-8")
    shown = [float(value) for value in re.findall(r'"stability": ?([0-9.]+)', page)]
    expected = [value for value in found.category_stability() if not np.isnan(value)]
    assert shown == pytest.approx(expected, abs=1e-3)
