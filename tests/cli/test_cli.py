"""The command line on real files: the verbs, and one clear sentence for every kind of bad input."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from PIL import Image

from promptcal.api import evaluate
from promptcal.data import embedded_set


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
    """Settings for a fit of seconds; its report has tests of its own."""
    return ["--no-report", *(part for setting in (*settings, *more) for part in ("--set", setting))]


@pytest.fixture(scope="module")
def run(folder, quick_settings, tmp_path_factory):
    """A finished run, made by the real command in a process of its own."""
    output = tmp_path_factory.mktemp("cli") / "run"
    command = [sys.executable, "-m", "promptcal", "fit", str(folder / "images"), "--output", str(output)]
    command += ["--labels", str(folder / "labels.csv"), "--n-classes", "4", *quick(quick_settings)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0, finished.stderr
    assert "affinity 2/2" in finished.stderr  # progress, line by line where there is no terminal
    assert "new-2" in finished.stdout
    return output


def test_fit_writes_all_it_promises(run, folder):
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
    assert config["affinity"]["memory"] == 64  # as overridden
    assert config["loss"]["alpha"] == 0.35  # and the rest resolved
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


def test_predict_repeats_the_fit_on_its_own_images(promptcal, run, folder, tmp_path):
    code, _, _ = promptcal("predict", run, folder / "images", "--output", tmp_path / "again.csv", "--quiet")
    assert code == 0
    fitted = {r["path"]: r for r in read_csv(run / "assignments.csv")}
    predicted = read_csv(tmp_path / "again.csv")
    assert [r["path"] for r in predicted] == list(fitted)
    same = [r["name"] == fitted[r["path"]]["name"] for r in predicted if fitted[r["path"]]["labelled"] == "no"]
    assert np.mean(same) == 1.0  # unlabelled images lie in the cluster of the nearest centre


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
    # known clusters keep their names in one of these matchings; the best of all cannot be worse
    assert found["all"] >= max(hits_by_matching) - 1e-9


def test_fit_with_truth_reports_each_step_of_the_method(promptcal, folder, quick_settings, tmp_path):
    code, out, _ = promptcal(
        "fit", folder / "images", "--output", tmp_path / "run", "--labels", folder / "labels.csv", "--n-classes", 4,
        "--truth", folder / "truth.csv", "--quiet", *quick(quick_settings, "warmup.epochs=1", "affinity.epochs=1"),
    )  # fmt: skip
    assert code == 0
    for row in ("k-means, frozen", "semi-supervised k-means", "stage 1", "stage 2"):
        assert row in out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 < results["affinity"]["accuracy"]["all"] <= 1
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= record["cls/precision"] <= 1


def test_nothing_labelled_is_plain_clustering_and_says_so(promptcal, folder, quick_settings, tmp_path):
    code, out, err = promptcal(
        "fit", folder / "images", "--output", tmp_path / "run", "--n-classes", 4, *quick(quick_settings)
    )
    assert code == 0
    assert "plain k-means" in err
    assert "new-4" in out
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    code, out, _ = promptcal("predict", tmp_path / "run", folder / "new", "--quiet")
    assert code == 0
    assert len(out.splitlines()) == 4


def test_a_finished_run_is_not_overwritten_unasked(promptcal, run, folder, quick_settings):
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


def test_a_failed_overwrite_leaves_the_old_run(promptcal, run, folder, quick_settings):
    code, _, err = promptcal(
        "fit", folder / "images", "--output", run, "--n-classes", 4, "--overwrite", "--weights", "missing.pth",
        *quick(quick_settings),
    )  # fmt: skip
    assert code == 2
    assert "missing.pth" in err
    assert (run / "assignments.csv").exists()


def bad_inputs(folder, tmp_path):
    """What is wrong, the arguments that replace the good ones, and what the message must name."""
    write_csv(tmp_path / "unknown-file.csv", [("ghost.png", "cat")])
    write_csv(tmp_path / "six.csv", [(f"ü/{i:03d}.png", f"c{i}") for i in range(0, 12, 2)])
    (tmp_path / "no-header.csv").write_text("ü/000.png,cat\n", encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("affinity: [1, 2\n")
    (tmp_path / "typo.yaml").write_text("afinity:\n  k: 3\n")
    (tmp_path / "not-weights.pth").write_bytes(b"not a weight file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bad.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "broken" / "good.png")
    write_csv(tmp_path / "one.csv", [("good.png", "cat")])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    all_labelled = tmp_path / "all.csv"
    all_labelled.write_text((folder / "truth.csv").read_text(encoding="utf-8"), encoding="utf-8")
    return {
        "missing folder": ({"images": tmp_path / "nowhere"}, ["nowhere", "does not exist"]),
        "empty folder": ({"images": tmp_path / "empty"}, ["empty", "no images"]),
        "unreadable image": (
            {"images": tmp_path / "broken", "labels": tmp_path / "one.csv", "n_classes": 2},
            ["bad.jpg", "--skip-unreadable"],
        ),
        "missing labels": ({"labels": tmp_path / "nolabels.csv"}, ["nolabels.csv", "does not exist"]),
        "label for an unknown file": ({"labels": tmp_path / "unknown-file.csv"}, ["ghost.png", "no such image"]),
        "labels without header": ({"labels": tmp_path / "no-header.csv"}, ["path,label"]),
        "more classes than clusters": ({"labels": tmp_path / "six.csv"}, ["6 classes", "--n-classes"]),
        "nothing unlabelled": ({"labels": all_labelled}, ["nothing to discover"]),
        "no number of classes": ({"n_classes": None}, ["--n-classes"]),
        "zero classes": ({"n_classes": 0}, ["n_classes", "greater than or equal to 1"]),
        "too many classes": ({"n_classes": 500}, ["498", "n-classes"]),
        "wrong weight file": ({"more": ["--weights", tmp_path / "not-weights.pth"]}, ["not-weights.pth"]),
        "unknown backbone": ({"more": ["--set", "model.backbone=vit_huge_patch3"]}, ["vit_huge_patch3"]),
        "not a ViT": ({"more": ["--set", "model.backbone=resnet18"]}, ["resnet18", "vision transformer"]),
        "typo in --set": ({"more": ["--set", "afinity.k=3"]}, ["afinity", "did you mean"]),
        "--set without value": ({"more": ["--set", "seed"]}, ["key=value"]),
        "wrong type": ({"more": ["--set", "affinity.k=many"]}, ["affinity.k"]),
        "broken YAML": ({"more": ["--config", tmp_path / "bad.yaml"]}, ["bad.yaml", "YAML"]),
        "typo in YAML": ({"more": ["--config", tmp_path / "typo.yaml"]}, ["afinity"]),
        "unknown method": ({"more": ["--method", "magic"]}, ["method", "promptcal-warmup"]),
        "unknown preset": ({"more": ["--preset", "fast"]}, ["fast", "quick"]),
        "unknown device": ({"more": ["--device", "abacus"]}, ["abacus"]),
        "output is full of other things": ({"output": tmp_path / "full"}, ["full", "not empty"]),
        "resume of nothing": ({"more": ["--resume"]}, ["there is no run in"]),
        "resize below the crop": ({"more": ["--set", "data.resize=8"]}, ["data.resize"]),
    }  # fmt: skip


CASES = [
    "missing folder", "empty folder", "unreadable image", "missing labels", "label for an unknown file",
    "labels without header", "more classes than clusters", "nothing unlabelled", "no number of classes",
    "zero classes", "too many classes", "wrong weight file", "unknown backbone", "not a ViT", "typo in --set",
    "--set without value", "wrong type", "broken YAML", "typo in YAML", "unknown method", "unknown preset",
    "unknown device", "output is full of other things", "resume of nothing", "resize below the crop",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence_and_exit_code_2(case, promptcal, folder, quick_settings, tmp_path):
    cases = bad_inputs(folder, tmp_path)
    assert sorted(cases) == sorted(CASES)
    changes, named = cases[case]
    given = {"images": folder / "images", "labels": folder / "labels.csv", "n_classes": 4, "output": tmp_path / "run"}
    given |= changes
    before = sorted(tmp_path.rglob("*"))
    arguments = ["fit", given["images"], "--output", given["output"]]
    arguments += ["--labels", given["labels"]] if given["labels"] else []
    arguments += ["--n-classes", given["n_classes"]] if given["n_classes"] is not None else []
    code, out, err = promptcal(*arguments, "--quiet", *quick(quick_settings), *given.get("more", []))
    assert code == 2
    assert out == ""
    assert err.startswith("promptcal: ")
    assert len(err.strip().splitlines()) == 1
    for word in named:
        assert word in err
    assert sorted(tmp_path.rglob("*")) == before  # no half-written output


def test_unreadable_images_can_be_left_out(promptcal, folder, quick_settings, tmp_path):
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
    # a truth for all images given, the left-out one too, scores the same by name and by order
    truth = {r["path"]: r["name"] if i % 5 else "other" for i, r in enumerate(rows)}
    by_name = evaluate(run=tmp_path / "run", truth=truth)
    in_order = [truth.get(file.name, "anything") for file in sorted(images.iterdir())]
    assert evaluate(run=tmp_path / "run", truth=in_order).all == by_name.all


def test_labels_on_unreadable_images_only_is_plain_clustering(promptcal, folder, quick_settings, tmp_path):
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


def test_an_output_inside_the_image_folder_is_refused(promptcal, folder, quick_settings):
    output = folder / "images" / "run"
    code, _, err = promptcal("fit", folder / "images", "--output", output, "--n-classes", 3, *quick(quick_settings))
    assert code == 2
    assert "lies in the image folder" in err
    assert not output.exists()


def test_predict_refuses_an_output_without_a_folder(promptcal, run, folder, tmp_path):
    code, _, err = promptcal("predict", run, folder / "new", "--output", tmp_path / "nowhere" / "p.csv")
    assert code == 2
    assert "does not exist; make it first" in err


def test_distillation_on_extra_images_is_logged(promptcal, folder, quick_settings, tmp_path):
    code, _, _ = promptcal(
        "fit", folder / "images", "--output", tmp_path / "run", "--n-classes", 4, "--labels", folder / "labels.csv",
        "--quiet", *quick(quick_settings, f"warmup.distillation={folder / 'new'}", "affinity.epochs=0"),
    )  # fmt: skip
    assert code == 0
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert record["distillation"] > 0


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_other_verbs_refuse_what_is_no_run(promptcal, folder, tmp_path, verb):
    rest = [folder / "new"] if verb == "predict" else ["--truth", folder / "truth.csv"]
    code, _, err = promptcal(verb, tmp_path, *rest)
    assert code == 2
    assert "not a run directory" in err


def test_evaluate_names_a_truth_for_an_unknown_image(promptcal, run, tmp_path):
    write_csv(tmp_path / "truth.csv", [("ghost.png", "cat")])
    code, _, err = promptcal("evaluate", run, "--truth", tmp_path / "truth.csv")
    assert code == 2
    assert "ghost.png" in err


@pytest.mark.parametrize(
    "arguments", [["--help"], *([verb, "--help"] for verb in ("fit", "predict", "evaluate", "demo"))]
)
def test_help_shows_every_verb_and_option(promptcal, arguments):
    code, out, _ = promptcal(*arguments)
    assert code == 0
    expected = {"fit": "--labels", "predict": "--output", "evaluate": "--truth", "demo": "--seed"}
    assert (expected[arguments[0]] if len(arguments) > 1 else "evaluate") in out
