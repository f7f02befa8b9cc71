"""From a run directory to its report: its content, and what is missing without some of the files."""

import csv
import hashlib
import re
import shlex
import shutil
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import CLASSES, HOSTILE_FILES, NAMED, page_data
from PIL import Image

from promptcal import make_report
from promptcal.errors import RunError, WeightsError
from promptcal.methods import load_config
from promptcal.models.attention import class_attention
from promptcal.pipeline.repeated_options import repeated_words
from promptcal.pipeline.request import FitRequest
from promptcal.report.attention_panels import Examples, attention_maps, overlays
from promptcal.report.next_command import next_command, next_output
from promptcal.report.page_data import chart_records
from promptcal.report.selection import N_EXAMPLES, choose_examples
from promptcal.report.thumbnails import Thumbnails
from promptcal.run import Run, RunInfo, RunResults


@pytest.fixture
def copy(hostile_run, tmp_path):
    """A copy of the run directory that a test may change."""
    return shutil.copytree(hostile_run.path, tmp_path / "run")


def test_the_page_is_one_file_that_lets_only_its_own_script_run(hostile_report):
    html = hostile_report.path.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:)?//""", html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not re.search("[<>&]", re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])  # no text is HTML
    for tag in ("script", "style"):
        own = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[1]
        digest = b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_data_is_that_of_the_run(hostile_run, hostile_report):
    data = page_data(hostile_report.path)
    assignments = hostile_run.assignments()
    assert data["images"]["paths"] == assignments.paths
    assert set(HOSTILE_FILES) < set(data["images"]["paths"])
    assert np.array_equal(data["images"]["cluster"], assignments.clusters)
    assert np.allclose(data["images"]["confidence"], assignments.confidence)
    truth = [None if t < 0 else data["classes"][t] for t in data["images"]["truth"]]
    assert truth == hostile_run.truth()
    assert set(truth) == set(CLASSES)
    assert [c["label"] for c in data["clusters"]] == hostile_run.names
    assert [c["name"] for c in data["clusters"]][2:] == ["new 1", "new 2"]
    assert [c["size"] for c in data["clusters"]] == np.bincount(assignments.clusters, minlength=4).tolist()
    assert sorted(data["images"]["shown"]) == list(range(48))
    assert ["affinity.memory", "64"] in data["settings"]
    assert np.array(data["confusion"]["counts"]).sum() == 48 - 12
    assert data["accuracy"][-1]["all"] == hostile_run.directory.results().selected.all
    root, path = hostile_run.info.root, hostile_run.path
    parts = {"before": f"promptcal fit {root} --labels ", "after": f" --from {path} --output {path}-2"}
    assert data["nextCommand"] == {
        **parts, "nClasses": " --n-classes ", "end": "", "name": f"promptcal name {path} "
    }  # fmt: skip
    matrix = data["confusion"]  # a cluster has the colour of the class it matches
    assert [data["clusters"][c]["colour"] for c in matrix["clusters"]] == list(range(4))
    assert matrix["classes"] == data["classes"]
    assert [data["clusters"][c]["label"] for c in (0, 1)] == data["classes"][:2]
    assert hostile_report.n_bytes == hostile_report.path.stat().st_size < 2_000_000


def test_the_page_has_the_images_that_moved(continued_run, tmp_path):
    data = page_data(make_report(run=continued_run, output=tmp_path / "page.html", progress=False).path)
    with (continued_run.path / "changes.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    changes, paths = data["changes"], data["images"]["paths"]
    origins = [changes["origins"][o] for o in changes["origin"]]
    moves = dict(zip((paths[i] for i in changes["image"]), origins, strict=True))
    assert moves == {row["path"]: row["from_name"].replace("new-", "new ") for row in rows}
    assert [changes[key] for key in ("moved", "images", "added", "missing")] == [len(rows), 48, 0, 0]
    assert changes["renamed"] == [{"cluster": 3, "oldName": "new 2"}]
    assert data["clusters"][3]["name"] == NAMED
    assert changes["removedCategories"] == changes["addedCategories"] == []


def test_damaged_changes_are_an_error(continued_run, tmp_path):
    run = shutil.copytree(continued_run.path, tmp_path / "run")
    (run / "changes.csv").write_text("path,from_cluster,from_name\nno such image,0,x\n", encoding="utf-8")
    with pytest.raises(RunError, match=r"changes\.csv is damaged .*no such image"):
        make_report(run=run, progress=False)


def test_each_tile_shows_its_image(hostile_run):
    kept, paths = Thumbnails.read(hostile_run.directory.thumbnails_folder, 48), hostile_run.assignments().paths
    for place in (0, 17, 47):
        with Image.open(f"{hostile_run.info.root}/{paths[kept.images[place]]}") as image:
            original = np.asarray(image, dtype=float)  # of 32 pixels: neither cropped nor enlarged
        assert np.abs(np.asarray(kept.tile(place), dtype=float) - original).mean() < 12


def test_attention_is_of_the_backbone_and_of_each_stage(hostile_run, small_set):
    examples = Examples.read(hostile_run.directory.examples_file)
    assert examples.pixels.shape == (N_EXAMPLES, 32, 32, 3)
    # as the network saw it: 36 pixels, then the centre 32
    with Image.open(f"{hostile_run.info.root}/{hostile_run.assignments().paths[examples.images[0]]}") as image:
        seen = np.asarray(image.resize((36, 36), Image.Resampling.BICUBIC))[2:34, 2:34]
    assert np.abs(examples.pixels[0].astype(int) - seen).max() <= 1
    run = Run(hostile_run.path, "cpu")
    maps = attention_maps(run, run.directory.results(), examples)
    assert maps.steps == ["pretrained", "after stage 1", "after stage 2"]
    assert maps.maps.shape == (N_EXAMPLES, 3, 8, 8)
    assert np.allclose(maps.maps.sum(axis=(2, 3)), 1, atol=1e-5)
    fresh = Run(hostile_run.path, "cpu").network.vit
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in fresh.preprocessing[1:])
    views = (torch.from_numpy(examples.pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    end = class_attention(fresh, views).mean(dim=1).reshape(-1, 8, 8).numpy()
    assert np.allclose(maps.maps[:, 2], end, atol=1e-6)
    for step in (0, 1):
        assert np.abs(maps.maps[:, step] - end).max() > 1e-6
    assert overlays(maps, 40).shape == (N_EXAMPLES, 4, 40, 40, 3)


def test_maps_are_computed_once_and_then_need_no_weights(copy, monkeypatch):
    def attention():
        make_report(run=copy, progress=False)
        return page_data(copy / "report.html")["attention"]

    assert attention()["steps"] == ["pretrained", "after stage 1", "after stage 2"]
    page, computed = (copy / "report.html").read_bytes(), (copy / "map.npz").stat().st_mtime_ns
    shutil.rmtree(copy / "checkpoints")
    attention()
    assert (copy / "report.html").read_bytes() == page
    assert (copy / "map.npz").stat().st_mtime_ns == computed
    (copy / "attention.npz").unlink()
    without = attention()
    assert without["steps"] == ["pretrained", "after stage 2"]
    assert "The maps after stage 1 are missing" in without["missing"]
    assert not (copy / "attention.npz").exists()  # incomplete maps are not stored

    def no_weights(*args, **kwargs):
        raise WeightsError("no hub here")

    monkeypatch.setattr("promptcal.report.attention_panels._pretrained_backbone", no_weights)
    assert attention()["steps"] == ["after stage 2"]


def test_examples_are_typical_unlabelled_images_of_all_categories(hostile_run):
    assignments = hostile_run.assignments()
    chosen = choose_examples(assignments, 6)
    assert len(set(chosen)) == 6
    assert not assignments.labelled[chosen].any()
    with_unlabelled = set(assignments.clusters[~assignments.labelled])
    assert set(assignments.clusters[chosen]) == with_unlabelled
    for cluster in with_unlabelled:
        members = np.flatnonzero((assignments.clusters == cluster) & ~assignments.labelled)
        best = assignments.confidence[members].max()
        assert best in assignments.confidence[chosen[assignments.clusters[chosen] == cluster]]


def test_a_run_without_truth_and_epochs_has_a_report(copy):
    (copy / "truth.csv").unlink()
    (copy / "metrics.jsonl").unlink()
    (copy / "thumbnails" / "examples.npz").unlink()
    results = RunResults.read(copy / "results.json")
    RunResults(method=results.method).write(copy / "results.json")
    make_report(run=copy, progress=False)
    data = page_data(copy / "report.html")
    assert data["confusion"] is None
    assert data["classes"] == data["accuracy"] == data["trainingCharts"] == data["graphCharts"] == []
    assert "no unlabelled images" in data["attention"]["missing"]
    assert len(data["images"]["paths"]) == 48


def test_curves_have_a_point_for_each_epoch_that_has_the_figure():
    records = [
        {"stage": "warmup", "epoch": 1, "loss": 3.0},
        {"stage": "warmup", "epoch": 2, "loss": 2.0, "validation/known": 0.5},
        {"stage": "affinity", "epoch": 1, "loss": 4.0, "cls/positives": 7.0, "prompt/positives": 9.0},
        {"stage": "affinity", "epoch": 2, "loss": None, "cls/positives": 8.0, "prompt/positives": 9.5},
    ]
    loss, known = chart_records(records, "training")
    assert loss["lines"] == [{"name": "", "points": [[1, 3.0], [2, 2.0], [3, 4.0]]}]
    assert loss["stages"] == [[1, "warmup"], [3, "affinity"]]
    assert known["lines"][0]["points"] == [[2, 0.5]]
    (graph,) = chart_records(records, "graph")
    assert [line["points"] for line in graph["lines"]] == [[[3, 7.0], [4, 8.0]], [[3, 9.0], [4, 9.5]]]
    assert (graph["first"], graph["last"], graph["stages"]) == (3, 4, [[3, "affinity"]])


def test_evaluate_leaves_the_truth_for_the_report(promptcal, copy, hostile_run, tmp_path):
    truth = (copy / "truth.csv").read_text(encoding="utf-8")
    (copy / "truth.csv").rename(tmp_path / "given.csv")
    code, _, err = promptcal("evaluate", copy, "--truth", tmp_path / "given.csv")
    assert code == 0, err
    assert (copy / "truth.csv").read_text(encoding="utf-8") == truth


def test_report_command_says_where_and_how_large(promptcal, copy, tmp_path):
    code, out, err = promptcal("report", copy, "--output", tmp_path / "page.html", "--quiet")
    assert code == 0, err
    assert f"{tmp_path / 'page.html'}" in out
    assert "all of 48 images shown" in out
    (copy / "embeddings.npy").write_bytes(b"damaged")
    for arguments, message in (
        ([copy, "--output", tmp_path / "nowhere" / "page.html"], "does not exist; create it first"),
        ([tmp_path], "not a run directory"),
        ([copy], "embeddings.npy changed since the fit wrote it"),
    ):
        code, _, err = promptcal("report", *arguments)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_the_suggested_command_runs_anywhere_with_the_same_images(
    promptcal, tmp_path, small_set, common_settings, monkeypatch
):
    """A pattern, spaces, an unreadable file, relative paths: the command names all that the run needed."""
    folder = tmp_path / "my photos; touch x"
    folder.mkdir()
    pixels, truth, labels = small_set
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i:02d}.png")
    Image.fromarray(pixels[0]).save(folder / "other.bmp")
    (folder / "broken.png").write_bytes(b"no image")
    lines = [f"{i:02d}.png,class {y}" for i, y in enumerate(labels) if y >= 0]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]))
    (tmp_path / "truth.csv").write_text(
        "\n".join(["path,label", *(f"{i:02d}.png,class {y}" for i, y in enumerate(truth))])
    )
    monkeypatch.chdir(tmp_path)
    settings = [part for setting in common_settings for part in ("--set", setting)]
    given = ["--labels", "labels.csv", "--truth", "truth.csv", "--n-classes", 4, "--output", "run", "--skip-unreadable"]
    code, _, err = promptcal("fit", "my photos; touch x/*.png", *given, "--method", "kmeans", *settings, "--quiet")
    assert code == 0, err
    parts = page_data(tmp_path / "run" / "report.html")["nextCommand"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "new-labels.csv").write_text("path,label\n47.png,emu\n")
    program, *words = shlex.split(f"{parts['before']}new-labels.csv{parts['after']}{parts['nClasses']}5{parts['end']}")
    assert program == "promptcal"
    code, _, err = promptcal(*words, "--quiet", "--no-report")
    assert code == 0, err
    again = Run(tmp_path / "run-2", "cpu")
    assert again.assignments().paths == [f"{i:02d}.png" for i in range(48)]
    assert {"class 0", "class 1", "emu"} <= set(again.names)
    assert again.config.n_classes == 5
    assert again.truth() == [f"class {y}" for y in truth]
    assert next_output(tmp_path / "run") == tmp_path / "run-3"  # run-2 exists
    assert next_output(tmp_path / "run-7") == tmp_path / "run-8"


def test_commands_of_other_images(hostile_run, copy):
    """Runs of arrays are continued in Python, benchmarks by name; older runs recorded only the folder."""
    info = RunInfo.read(copy / "run.json")

    def command(**changes):
        info.model_copy(update=changes).write(copy / "run.json")
        return next_command(Run(copy, "cpu"))

    assert command(command=[])["before"] == f"promptcal fit {info.root} --labels "
    (copy / "skipped.csv").write_text("path,reason,position\n")
    assert command(command=[])["before"] == f"promptcal fit {info.root} --skip-unreadable --labels "
    assert command(command=["benchmark", "mini"])["before"] == "promptcal benchmark mini --labels "
    python = command(command=[], root=None)
    assert python["before"] == 'promptcal.fit(images=..., labels="'
    assert python["after"].endswith(", skip_unreadable=True")
    request = FitRequest(images="photos", output="run", weights="w.pt")
    trained, frozen = (
        load_config(values={"method": method, "n_classes": 4, "model": {"weights": "w.pt"}})
        for method in ("promptcal", "kmeans")
    )
    assert repeated_words(request, trained) == ["fit", str(Path("photos").absolute())]
    assert repeated_words(request, frozen)[2:] == ["--weights", str(Path("w.pt").absolute())]
    assert repeated_words(FitRequest(images=np.zeros(1), output="run"), trained) == []
    assert repeated_words(replace(request, keep_confirmed=True), trained)[2:] == ["--keep-confirmed"]
    long = replace(request, keep="trained", allow_long=True)
    assert repeated_words(long, trained)[2:] == ["--keep", "trained", "--allow-long"]
    assert repeated_words(replace(long, command=("benchmark", "mini")), trained)[2:] == [
        "--keep", "trained", "--allow-long",
    ]  # fmt: skip


def test_a_fit_ends_with_its_report(promptcal, hostile_run, common_settings, tmp_path):
    arguments = ["fit", hostile_run.info.root, "--output", tmp_path / "run", "--n-classes", 3, "--quiet"]
    settings = [part for setting in common_settings for part in ("--set", setting)]
    code, out, err = promptcal(*arguments, *settings)  # no labels: plain k-means, no truth, no stages
    assert code == 0, err
    assert "report.html" in out
    data = page_data(tmp_path / "run" / "report.html")
    assert data["attention"]["steps"] == ["pretrained"]
    assert data["summary"]["known"] == 0
    assert {c["nearest"] for c in data["clusters"]} == {-1}
    code, out, _ = promptcal(*arguments, *settings, "--no-report", "--overwrite")
    assert code == 0
    assert "report.html" not in out
    assert not (tmp_path / "run" / "report.html").exists()
