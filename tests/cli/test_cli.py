"""The command line on real files: its commands, its help, and one sentence for every kind of wrong input."""

import csv
import inspect
import io
import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from promptcal import api
from promptcal.app.server import serve
from promptcal.cli import app
from promptcal.data import embedded_set
from promptcal.data.check import MAX_DISTANCE
from promptcal.experiments.table_request import TableRequest
from promptcal.pipeline import time_limit
from promptcal.pipeline.request import BenchmarkRequest, FitRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_set):
    """images/ with sub-folders, labels.csv and truth.csv beside it, and three new images."""
    root = tmp_path_factory.mktemp("own")
    images, truth, labels = small_set
    names = [f"{'a b' if i % 2 else 'ü'}/{i:03d}.png" for i in range(len(images))]
    for name, image in zip(names, images, strict=True):
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / "images" / name)
    classes = embedded_set().classes
    write_csv(root / "labels.csv", [(n, classes[y]) for n, y in zip(names, labels, strict=True) if y >= 0])
    write_csv(root / "truth.csv", [(n, classes[y]) for n, y in zip(names, truth, strict=True)])
    (root / "new").mkdir()
    for i, image in enumerate(embedded_set("test").images[:3]):
        Image.fromarray(image).save(root / "new" / f"{i}.jpg")
    return root


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *rows])


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def quick(settings, *more):
    """Options for a fit of seconds; reports are tested elsewhere."""
    return ["--no-report", *(part for setting in (*settings, *more) for part in ("--set", setting))]


@pytest.fixture(scope="module")
def run(folder, quick_settings, tmp_path_factory):
    """A finished run, written by the command in a separate process."""
    output = tmp_path_factory.mktemp("cli") / "run"
    command = [sys.executable, "-m", "promptcal", "fit", str(folder / "images"), "--output", str(output)]
    command += ["--labels", str(folder / "labels.csv"), "--n-classes", "4", *quick(quick_settings)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0, finished.stderr
    # progress, which is printed line by line without a terminal
    assert "PromptCAL stage 2, affinity learning: epoch 2 of 2" in finished.stderr
    assert "gradient" not in finished.stderr  # losses and graph statistics need --verbose
    assert "4 categories: 2 known (some of their images have labels) and 2 new" in finished.stdout
    assert "new-2" in finished.stdout
    return output


def test_fit_writes_a_complete_run_directory(run, folder):
    rows = read_csv(run / "assignments.csv")
    labels = {row["path"]: row["label"] for row in read_csv(folder / "labels.csv")}
    assert len(rows) == 48
    assert {row["kind"] for row in rows} == {"known", "new"}
    for row in rows:
        assert 0 < float(row["confidence"]) <= 1
        assert (row["labelled"] == "yes") == (row["path"] in labels)
        if row["path"] in labels:
            assert row["name"] == labels[row["path"]]  # a labelled image keeps its class
        assert (row["kind"] == "new") == row["name"].startswith("new-")
    embeddings = np.load(run / "embeddings.npy")
    assert embeddings.shape == (48, 192)
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["n_classes"] == 4
    assert config["affinity"]["memory"] == 64
    assert config["loss"]["alpha"] == 0.35  # a default
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(r["stage"], r["epoch"]) for r in records] == [
        ("warmup", 1), ("warmup", 2), ("affinity", 1), ("affinity", 2),
    ]  # fmt: skip
    assert {"loss", "cls/affinity", "cls/positives", "cls/without_positives", "cls/threshold"} <= records[-1].keys()
    assert list((run / "tensorboard" / "affinity").glob("events.*"))
    new = sorted({row["cluster"] for row in rows if row["kind"] == "new"})
    sheets = {p.name for p in (run / "sheets").iterdir()}
    assert {f"{int(c):02d}-new-{int(c) - 1}.png" for c in new} <= sheets
    with Image.open(run / "sheets" / "overview.png") as picture:
        assert np.asarray(picture).std() > 20


def test_predict_assigns_the_images_of_the_fit_to_the_same_categories(promptcal, run, folder, tmp_path):
    code, _, _ = promptcal("predict", run, folder / "images", "--output", tmp_path / "again.csv", "--quiet")
    assert code == 0
    fitted = {r["path"]: r for r in read_csv(run / "assignments.csv")}
    predicted = read_csv(tmp_path / "again.csv")
    assert [r["path"] for r in predicted] == list(fitted)
    same = [r["name"] == fitted[r["path"]]["name"] for r in predicted if fitted[r["path"]]["labelled"] == "no"]
    assert np.mean(same) == 1.0  # unlabelled images are in the cluster of the nearest centroid


def test_predict_prints_new_images_with_confidence(promptcal, run, folder):
    code, out, _ = promptcal("predict", run, folder / "new", "--quiet")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert [r["path"] for r in rows] == ["0.jpg", "1.jpg", "2.jpg"]
    assert all(0 < float(r["confidence"]) <= 1 for r in rows)
    code, out, _ = promptcal("predict", run, folder / "new" / "0.jpg", folder / "new" / "2.jpg", "--quiet")
    again = list(csv.DictReader(out.splitlines()))
    assert [r["name"] for r in again] == [rows[0]["name"], rows[2]["name"]]


def test_evaluate_scores_the_unlabelled_images(promptcal, run, folder):
    code, out, _ = promptcal("evaluate", run, "--truth", folder / "truth.csv")
    assert code == 0
    assert "separate matchings" in out
    found = json.loads((run / "evaluation.json").read_text())
    assert found["n_scored"] == 48 - 12
    truth = {r["path"]: r["label"] for r in read_csv(folder / "truth.csv")}
    rows = [r for r in read_csv(run / "assignments.csv") if r["labelled"] == "no"]
    hits_by_matching = []
    for first, second in (("bird", "cat"), ("cat", "bird")):
        names = [{"2": first, "3": second}.get(r["cluster"], r["name"]) for r in rows]
        hits_by_matching.append(np.mean([n == truth[r["path"]] for n, r in zip(names, rows, strict=True)]))
    pairs = [truth[r["path"]] for r in rows], [r["cluster"] for r in rows]
    assert found["accuracy"]["nmi"] == pytest.approx(normalized_mutual_info_score(*pairs))
    assert found["accuracy"]["ari"] == pytest.approx(adjusted_rand_score(*pairs))
    assert f"{100 * found['accuracy']['ari']:.1f}" in next(line for line in out.splitlines() if "one matching" in line)
    # known clusters keep their names in one of these matchings; the best of all cannot be worse
    assert found["accuracy"]["all"] >= max(hits_by_matching) - 1e-9


def test_fit_with_truth_reports_each_step_of_the_method(promptcal, folder, quick_settings, tmp_path):
    code, out, _ = promptcal(
        "fit", folder / "images", "--output", tmp_path / "run", "--labels", folder / "labels.csv", "--n-classes", 4,
        "--truth", folder / "truth.csv", "--quiet", *quick(quick_settings, "warmup.epochs=1", "affinity.epochs=1"),
    )  # fmt: skip
    assert code == 0
    for row in ("k-means, frozen", "semi-supervised k-means", "stage 1", "stage 2"):
        assert row in out
    words = " ".join(out.split())
    assert "The last row is the result. Accuracy: share of images in the right category" in words
    assert "NMI" not in words  # with --verbose
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["baselines"]) == {"kmeans", "semi_supervised_kmeans"}
    assert 0 < results["stages"]["affinity"]["accuracy"]["all"] <= 1
    assert results["stages"]["affinity"]["accuracy"] == results["selected"]
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= record["cls/precision"] <= 1


def test_a_fit_without_labels_is_plain_k_means_with_a_warning(promptcal, folder, quick_settings, tmp_path):
    code, out, err = promptcal(
        "fit", folder / "images", "--output", tmp_path / "run", "--n-classes", 4, *quick(quick_settings)
    )
    assert code == 0
    assert "plain k-means" in err
    assert "new-4" in out
    assert "The last row is the result" not in out  # there is no table of accuracies
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    code, out, _ = promptcal("predict", tmp_path / "run", folder / "new", "--quiet")
    assert code == 0
    assert len(out.splitlines()) == 4


class Terminal(io.StringIO):
    """What the user types."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("typed", "answer"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_a_question_is_asked_at_a_terminal_only(monkeypatch, capsys, typed, answer):
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert app._confirm()("Train for about 3 hours?") is answer
    out, err = capsys.readouterr()
    assert (out.strip(), "Train for about 3 hours? [y/N]" in err) == ("", True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert app._confirm() is None


def test_ctrl_c_at_a_question_stops_the_command(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    terminal = Terminal()
    terminal.readline = lambda *size: interrupted()
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(KeyboardInterrupt):
        app._confirm()("Train for about 3 hours?")


def test_no_to_a_long_training_ends_with_the_first_result(promptcal, folder, quick_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(time_limit, "LONG_SECONDS", 0)
    arguments = ["fit", folder / "images", "--labels", folder / "labels.csv", "--n-classes", 4, "--quiet"]
    settings = quick(quick_settings, "model.image_size=8", "warmup.epochs=1", "affinity.epochs=1")
    code, out, err = promptcal(*arguments, "--output", tmp_path / "asked", *settings)
    assert (code, "would take about" in err) == (2, True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, out, err = promptcal(*arguments, "--output", tmp_path / "run", *settings)
    assert code == 0, err
    assert "Nothing was trained, so the result is the first one. To train later, run the" in " ".join(out.split())
    assert "new-2" in out
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, out, err = promptcal(*arguments, "--output", tmp_path / "run", "--overwrite", *settings)
    assert (code, "The result is that of training" in out) == (0, True), err


def test_a_finished_run_is_not_overwritten_by_default(promptcal, run, folder, quick_settings):
    before = (run / "assignments.csv").read_text()
    arguments = ["fit", folder / "images", "--output", run, "--n-classes", 4, "--labels", folder / "labels.csv"]
    code, _, err = promptcal(*arguments, *quick(quick_settings))
    assert code == 2
    assert "holds a finished run" in err
    assert "--overwrite" in err
    code, _, err = promptcal(*arguments, "--resume", *quick(quick_settings))
    assert code == 2
    assert "nothing to resume" in err
    assert (run / "assignments.csv").read_text() == before


def test_a_failed_overwrite_keeps_the_old_run(promptcal, run, folder, quick_settings):
    code, _, err = promptcal(
        "fit", folder / "images", "--output", run, "--n-classes", 4, "--overwrite", "--weights", "missing.pth",
        *quick(quick_settings),
    )  # fmt: skip
    assert code == 2
    assert "missing.pth" in err
    assert (run / "assignments.csv").exists()


@pytest.fixture
def wrong_files(folder, tmp_path, monkeypatch):
    """Files with something wrong, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "unknown-file.csv", [("ghost.png", "cat")])
    write_csv(tmp_path / "six.csv", [(f"ü/{i:03d}.png", f"c{i}") for i in range(0, 12, 2)])
    write_csv(tmp_path / "one.csv", [("good.png", "cat")])
    (tmp_path / "no-header.csv").write_text("1,cat\n", encoding="utf-8")
    (tmp_path / "all.csv").write_bytes((folder / "truth.csv").read_bytes())
    (tmp_path / "bad.yaml").write_text("affinity: [1, 2\n")
    (tmp_path / "typo.yaml").write_text("afinity:\n  k: 3\n")
    (tmp_path / "not-weights.pth").write_bytes(b"not a weight file")
    for name in ("empty", "broken", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "bad.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "broken" / "good.png")
    (tmp_path / "full" / "mine.txt").write_text("precious")
    return tmp_path


# What is wrong: the arguments that replace correct ones, and what the message must name.
WRONG = {
    "missing folder": ({"images": "nowhere"}, ["nowhere", "does not exist"]),
    "empty folder": ({"images": "empty"}, ["empty", "no images"]),
    "unreadable image": ({"images": "broken", "--labels": "one.csv", "--n-classes": 2}, ["bad.jpg", "--skip-"]),
    "missing labels": ({"--labels": "nolabels.csv"}, ["nolabels.csv", "does not exist"]),
    "label for an unknown file": ({"--labels": "unknown-file.csv"}, ["ghost.png", "no such image"]),
    "labels without header": ({"--labels": "no-header.csv"}, ["path,label"]),
    "more classes than clusters": ({"--labels": "six.csv"}, ["6 classes", "--n-classes"]),
    "nothing unlabelled": ({"--labels": "all.csv"}, ["nothing to discover"]),
    "no number of classes": ({"--n-classes": None}, ["--n-classes"]),
    "zero classes": ({"--n-classes": 0}, ["n_classes", "greater than or equal to 1"]),
    "too many classes": ({"--n-classes": 500}, ["498", "n-classes"]),
    "wrong weight file": ({"--weights": "not-weights.pth"}, ["not-weights.pth"]),
    "unknown backbone": ({"--set": "model.backbone=vit_huge_patch3"}, ["vit_huge_patch3"]),
    "not a ViT": ({"--set": "model.backbone=resnet18"}, ["resnet18", "vision transformer"]),
    "typo in --set": ({"--set": "afinity.k=3"}, ["afinity", "did you mean"]),
    "--set without value": ({"--set": "seed"}, ["key=value"]),
    "wrong type": ({"--set": "affinity.k=many"}, ["affinity.k"]),
    "resize below the crop": ({"--set": "data.resize=7"}, ["data.resize"]),
    "broken YAML": ({"--config": "bad.yaml"}, ["bad.yaml", "YAML"]),
    "typo in YAML": ({"--config": "typo.yaml"}, ["afinity"]),
    "unknown method": ({"--method": "magic"}, ["method", "promptcal-warmup"]),
    "unknown preset": ({"--preset": "fast"}, ["fast", "quick"]),
    "unknown device": ({"--device": "abacus"}, ["abacus"]),
    "output is full of other things": ({"--output": "full"}, ["full", "not empty"]),
    "resume of nothing": ({"--resume": True}, ["there is no run in"]),
    "output in the image folder": ({"--output": "{images}/run"}, ["lies in the image folder"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence_and_exit_code_2(case, promptcal, folder, quick_settings, wrong_files):
    changes, named = WRONG[case]
    given = {"images": folder / "images", "--labels": folder / "labels.csv", "--n-classes": 4, "--output": "run"}
    given |= changes
    before = [sorted(place.rglob("*")) for place in (wrong_files, folder)]
    arguments = ["fit", given.pop("images"), "--quiet", *quick(quick_settings)]
    for option, value in given.items():
        text = str(value).format(images=folder / "images")
        arguments += [] if value is None else [option] if value is True else [option, text]
    code, out, err = promptcal(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("promptcal: ")
    assert len(err.strip().splitlines()) == 1
    assert [word for word in named if word not in err] == []
    assert [sorted(place.rglob("*")) for place in (wrong_files, folder)] == before  # nothing was written


def test_unreadable_images_can_be_skipped(promptcal, folder, quick_settings, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for file in (folder / "images").rglob("*.png"):
        (images / file.name).write_bytes(file.read_bytes())
    (images / '020 bad ", name.jpg').write_bytes(b"\xff\xd8\xff nothing more")
    code, _, err = promptcal(
        "fit", images, "--output", tmp_path / "run", "--n-classes", 3, "--skip-unreadable", *quick(quick_settings)
    )
    assert code == 0
    assert "1 unreadable" in err
    assert [r["path"] for r in read_csv(tmp_path / "run" / "skipped.csv")] == ['020 bad ", name.jpg']
    rows = read_csv(tmp_path / "run" / "assignments.csv")
    assert len(rows) == 48
    # a truth for all given images, the skipped one included, scores the same by name and by position
    truth = {r["path"]: r["name"] if i % 5 else "other" for i, r in enumerate(rows)}
    by_name = api.evaluate(run=tmp_path / "run", truth=truth)
    in_order = [truth.get(file.name, "anything") for file in sorted(images.iterdir())]
    assert api.evaluate(run=tmp_path / "run", truth=in_order).all == by_name.all


def test_a_fit_with_labels_only_on_unreadable_images_is_plain_k_means(promptcal, folder, quick_settings, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for file in (folder / "images").rglob("*.png"):
        (images / file.name).write_bytes(file.read_bytes())
    (images / "bad.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    write_csv(tmp_path / "labels.csv", [("bad.jpg", "cat")])
    code, _, err = promptcal(
        "fit", images, "--output", tmp_path / "run", "--n-classes", 3, "--labels", tmp_path / "labels.csv",
        "--skip-unreadable", *quick(quick_settings),
    )  # fmt: skip
    assert code == 0
    assert "plain k-means" in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_distillation_on_generic_images_is_captured(promptcal, folder, quick_settings, tmp_path):
    arguments = ["fit", folder / "images", "--n-classes", 4, "--labels", folder / "labels.csv", "--quiet"]
    given = [*arguments, "--output", tmp_path / "run", *quick(quick_settings, "affinity.epochs=0")]
    assert promptcal(*given, "--generic-images", folder / "new")[0] == 0
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert record["distillation"] > 0
    for wrong, message in (
        (["--generic-images", folder / "absent"], "absent"),
        (["--generic-images", folder / "new", "--method", "gcd"], "the method gcd uses no generic images"),
    ):
        code, _, err = promptcal(*arguments, "--output", tmp_path / "wrong", *wrong)
        assert code != 0
        assert message in err
        assert not (tmp_path / "wrong").exists()


def test_wrong_input_of_predict_and_evaluate_is_one_sentence(promptcal, run, folder, tmp_path):
    write_csv(tmp_path / "ghost.csv", [("ghost.png", "cat")])
    for arguments, named in (
        (["predict", tmp_path, folder / "new"], "not a run directory"),
        (["evaluate", tmp_path, "--truth", folder / "truth.csv"], "not a run directory"),
        (["predict", run, folder / "new", "--output", tmp_path / "nowhere" / "p.csv"], "does not exist; create it"),
        (["evaluate", run, "--truth", tmp_path / "ghost.csv"], "ghost.png"),
    ):
        code, _, err = promptcal(*arguments)
        assert code == 2
        assert named in err
        assert len(err.strip().splitlines()) == 1


def help_lines(promptcal, monkeypatch, *arguments):
    monkeypatch.setenv("COLUMNS", "500")  # so that each option is on one line
    code, out, _ = promptcal(*arguments, "--help")
    assert code == 0
    return [" ".join(line.split()) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("command", "request_type", "without"),
    [
        (
            "fit",
            FitRequest,
            {"inductive", "read_test", "benchmark", "protocol", "confirm", "command", "first_result", "readout"}
            | {"data_difference"},
        ),
        ("benchmark", BenchmarkRequest, {"confirm", "first_result", "readout"}),
        ("demo", BenchmarkRequest, {"name", "root", "download", "confirm", "first_result", "readout"}),
        ("table", TableRequest, set()),
    ],
)
def test_help_describes_every_option_of_the_request(promptcal, monkeypatch, command, request_type, without):
    lines = help_lines(promptcal, monkeypatch, command)
    for option in fields(request_type):
        if option.name in {"progress", *without}:
            continue
        name = option.name if option.metadata.get("argument") else "--" + option.name.replace("_", "-")
        flag = (option.metadata.get("flag") or name).strip(" /").partition("/")[0]
        shown = [line for line in lines if flag in line.split() and option.metadata["help"] in line]
        assert len(shown) == 1, option.name


def test_help_lists_every_command_and_shows_an_example_of_each(promptcal, monkeypatch):
    listed = help_lines(promptcal, monkeypatch)
    names = [c.name or c.callback.__name__.replace("_", "-") for c in app.app.registered_commands]
    assert {"fit", "predict", "evaluate", "export", "estimate-classes", "report", "check", "table"} <= set(names)
    for name in names:
        assert sum(line.startswith(f"│ {name} ") for line in listed) == 1
        assert any(f"Example: promptcal {name}" in line for line in help_lines(promptcal, monkeypatch, name))


def test_help_fills_each_paragraph_to_the_width_of_the_terminal_and_leaves_nothing_out(promptcal, monkeypatch):
    for command in app.app.registered_commands:
        name, text = command.callback.__name__.replace("_", "-"), inspect.getdoc(command.callback)
        lines = help_lines(promptcal, monkeypatch, name)
        for paragraph in text.split("\n\n"):
            assert " ".join(paragraph.split()) in lines, name


def test_commands_have_the_defaults_of_the_functions():
    """The command line repeats them because it must not import the functions before a command runs."""
    functions = {"report": api.make_report, "figure": api.make_figure, "serve": serve}
    compared = set()
    for command in app.app.registered_commands:
        name = command.callback.__name__
        theirs = inspect.signature(functions.get(name) or getattr(api, name)).parameters
        for option in inspect.signature(command.callback).parameters.values():
            if option.default not in (None, inspect.Parameter.empty) and option.name in theirs:
                assert str(option.default) == str(theirs[option.name].default), (name, option.name)
                compared.add(f"{name}.{option.name}")
    assert {"check.min_side", "check.near_distance", "demo.output", "table.output", "table.epoch"} <= compared
    near_distance = inspect.signature(app.check).parameters["near_distance"].annotation.__metadata__[0]
    assert (near_distance.min, near_distance.max) == (0, MAX_DISTANCE)
