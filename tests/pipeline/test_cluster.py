"""`promptcal cluster`: the run of given features is a run like any other; bad input writes nothing."""

import csv
import json
import re
import signal

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import promptcal as package
from promptcal import api
from promptcal.data import embedded_set
from promptcal.errors import ConfigError, DataError, PromptCALError, RunError
from promptcal.metrics import discovery_accuracy
from promptcal.run import Run

N, CLASSES, WIDTH = 150, 5, 12
FAST = ("clustering.n_init=4",)


def mixture(n, seed):
    """Rows around five directions, and the number of the direction of each."""
    centres = np.random.default_rng(7).normal(size=(CLASSES, WIDTH))
    generator = np.random.default_rng(seed)
    truth = generator.integers(CLASSES, size=n)
    return (3 * centres[truth] + generator.normal(size=(n, WIDTH))).astype(np.float32), truth


ROWS, TRUTH = mixture(N, 0)
IDS = [f"{i:03d}.png" for i in range(N)]
LABELS = {IDS[i]: f"class {TRUTH[i]}" for i in range(0, N, 2) if TRUTH[i] < 3}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Features, labels and truth as files, and a folder of pictures."""
    root = tmp_path_factory.mktemp("features")
    np.savez(root / "rows.npz", features=ROWS, ids=np.array(IDS))
    for name, pairs in (("labels.csv", LABELS.items()), ("truth.csv", zip(IDS, TRUTH, strict=True))):
        with (root / name).open("w", newline="") as file:
            csv.writer(file).writerows([("id", "label"), *pairs])
    (root / "images").mkdir()
    for name, image in zip(IDS, embedded_set("train").images, strict=False):
        Image.fromarray(image).save(root / "images" / name)
    return root


@pytest.fixture(scope="module")
def run(place):
    return api.cluster(
        features=place / "rows.npz", labels=place / "labels.csv", truth=place / "truth.csv", images=place / "images",
        n_classes=CLASSES, output=place / "run", overrides=FAST, progress=False,
    )  # fmt: skip


def test_known_and_new_categories_are_found_with_pictures(run):
    found = run.assignments()
    assert found.paths == IDS
    assert found.names == ["class 0", "class 1", "class 2", "new-1", "new-2"]
    assert [found.categories[IDS.index(name)] for name in LABELS] == list(LABELS.values())
    assert run.directory.results().selected.all > 0.97
    assert found.mean_stability > 0.9
    assert (run.path / "sheets" / "overview.png").is_file()
    assert "attention maps: this run is on features" in (run.path / "report.html").read_text()
    assert np.allclose(np.linalg.norm(run.embeddings(), axis=1), 1, atol=1e-5)
    assert run.calibration.basis == "held-out"


def test_new_features_are_predicted_or_none_of_these(run, tmp_path):
    rows, truth = mixture(60, 1)
    found = api.predict(run=run, images=rows, accept_all=True, progress=False)
    category = {number: found.names.index(f"class {number}") for number in range(3)}
    known = truth < 3
    assert (found.clusters[known] == [category[t] for t in truth[known]]).mean() > 0.95
    np.save(tmp_path / "new.npy", -ROWS)
    opposite = api.predict(run=run, images=tmp_path / "new.npy", progress=False)
    assert opposite.accepted.mean() < 0.2
    assert api.predict(run=run, images=rows, progress=False).accepted.mean() > 0.8
    with pytest.raises(DataError, match="rows of 3 numbers and the run has 12"):
        api.predict(run=run, images=ROWS[:, :3], progress=False)


def test_the_command_predicts_features_of_a_parquet_file(promptcal, run, tmp_path):
    """A CSV file and shards have every id in order, and what `Run.predict` gives for the same rows in Python."""
    rows, _ = mixture(60, 1)
    rows[::7] *= -1  # unlike every category
    rows = rows.astype(np.float16)
    ids = [f"bird {i}" for i in np.random.default_rng(0).permutation(60)]
    columns = {"embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), WIDTH), "id": pa.array(ids)}
    parquet.write_table(pa.table(columns), tmp_path / "new.parquet", row_group_size=25)
    expected = Run(run.path, "cpu").predict(rows, progress=False)
    assert 0.7 < expected.accepted.mean() < 1
    code, _, err = promptcal("predict", run.path, tmp_path / "new.parquet", "--output", tmp_path / "p.csv", "-q")
    assert (code, err) == (0, "")
    with (tmp_path / "p.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["path"] for row in found] == ids
    assert [int(row["cluster"]) for row in found] == expected.clusters.tolist()
    assert [row["name"] for row in found] == expected.categories
    assert [row["decision"] == "accepted" for row in found] == expected.accepted.tolist()
    assert np.allclose([float(row["confidence"]) for row in found], expected.confidence, atol=1e-4)
    code, _, err = promptcal("predict", run.path, tmp_path / "new.parquet", "--output", tmp_path / "shards", "-q")
    assert (code, err) == (0, "")
    shard = parquet.read_table(next((tmp_path / "shards" / "shards").glob("*.parquet"))).to_pydict()
    assert shard["id"] == ids
    assert shard["cluster"] == expected.clusters.tolist()
    assert shard["name"] == expected.categories
    assert [decision == "accepted" for decision in shard["decision"]] == expected.accepted.tolist()
    assert np.allclose(shard["confidence"], expected.confidence, atol=1e-4)
    np.save(tmp_path / "narrow.npy", rows[:, :3])
    code, _, err = promptcal("predict", run.path, tmp_path / "narrow.npy", "-q")
    assert (code, "rows of 3 numbers and the run has 12" in err) == (2, True)


def test_it_is_exported_named_evaluated_and_continued(run, place, tmp_path):
    api.export(run=run, to="embeddings", output=tmp_path / "e.parquet", progress=False)
    api.export(run=run, to="folders", output=tmp_path / "sorted", progress=False)
    assert sum(1 for path in (tmp_path / "sorted").rglob("*.png")) == N
    with pytest.raises(RunError, match="is a run on features"):
        api.export(run=run, to="onnx", output=tmp_path / "x.onnx", progress=False)
    assert api.evaluate(run=run, truth=place / "truth.csv").all > 0.97
    new = run.assignments()
    named = {new.paths[i]: "fourth" for i in np.flatnonzero(new.clusters == 3)[:4]}
    again = api.cluster(
        features=tmp_path / "e.parquet", labels=named, start_from=run.path, output=tmp_path / "run-2", progress=False,
        report=False,
    )  # fmt: skip
    assert again.names[3] == "fourth"
    assert json.loads((tmp_path / "run-2" / "changes.json").read_text())["renamed"][0]["new_name"] == "fourth"
    renamed = api.name(run=again.path, labels={again.assignments().paths[i]: "fifth" for i in last_of(again)[:3]})
    assert renamed.renamed == {"new-2": "fifth"}
    assert Run(again.path, "cpu").names[4] == "fifth"


def last_of(run):
    return np.flatnonzero(run.assignments().clusters == 4)


def test_the_command_says_what_it_found_and_shows_ids(promptcal, place, tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{int(k[:3])},{v}\n" for k, v in LABELS.items()))
    code, out, _ = promptcal(
        "cluster", tmp_path / "x.npy", "--labels", tmp_path / "labels.csv", "--n-classes", "5", "--output",
        tmp_path / "run", "--set", "clustering.readout=kmeans", "--set", "clustering.n_init=4", "-q",
    )  # fmt: skip
    assert code == 0
    assert "3 known" in out
    assert "overview.png" not in out
    assert not (tmp_path / "run" / "sheets").exists()
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"promptcal cluster {tmp_path / 'x.npy'} --labels" in page
    assert api.make_figure(name="tsne", run=tmp_path / "run", progress=False).is_file()
    with pytest.raises(ConfigError, match="no token prompts"):
        api.make_figure(name="tsne", run=tmp_path / "run", token="prompts", progress=False)


def test_the_number_of_classes_is_estimated_with_and_without_labels(tmp_path):
    given = {"features": ROWS, "progress": False, "report": False, "overrides": (*FAST, "clustering.readout=kmeans")}
    with_labels = api.cluster(**given, ids=IDS, labels=LABELS, output=tmp_path / "a")
    assert with_labels.info.n_classes_estimated
    assert (tmp_path / "a" / "class-count.json").is_file()
    assert 4 <= len(with_labels.names) <= 7
    assert len(api.cluster(**given, output=tmp_path / "b").names) == CLASSES


def test_features_are_whitened_only_if_hidden_labels_show_a_gain(tmp_path):
    """In two directions the rows vary much, which says nothing about the class; whitening shrinks them."""
    generator = np.random.default_rng(0)
    truth = generator.integers(6, size=600)
    rows = generator.normal(size=(600, 64))
    rows[:, 6:8] *= 15
    rows[:, :6] += 6 * np.eye(6)[truth]
    rows = rows @ np.linalg.qr(generator.normal(size=(64, 64))).Q
    labels = np.where((truth < 5) & (generator.random(600) < 0.8), truth, -1)
    noisy = {"features": rows, "labels": labels, "adapt": True, "report": False, "progress": False}
    fast = (*FAST, "clustering.readout=kmeans")
    gained = api.cluster(**noisy, n_classes=6, output=tmp_path / "a", overrides=fast)
    adaptation = gained.directory.results().adaptation
    assert adaptation.used == gained.config.features.projection == "whitened"
    assert adaptation.whitened > adaptation.without + 0.03
    assert adaptation.reason.endswith("a clear gain")
    left = api.cluster(**noisy | {"adapt": False}, n_classes=6, output=tmp_path / "left", overrides=fast)
    right = [
        discovery_accuracy(truth[labels < 0], r.assignments().clusters[labels < 0], range(5)) for r in (gained, left)
    ]
    assert right[0].all > right[1].all + 0.1
    assert not np.allclose(gained.embeddings(), rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=0.01)
    assert np.array_equal(  # what is stored is applied to new features
        api.predict(run=gained, images=rows, accept_all=True, progress=False).clusters[labels < 0],
        gained.assignments().clusters[labels < 0],
    )
    again = api.cluster(features=rows, start_from=gained.path, output=tmp_path / "c", progress=False, report=False)
    assert np.allclose(again.embeddings(), gained.embeddings(), atol=1e-5)
    easy = {"features": ROWS, "ids": IDS, "n_classes": 5, "adapt": True, "report": False, "progress": False}
    of_all = {IDS[i]: f"class {TRUTH[i]}" for i in range(0, N, 2)}
    for labels_of_easy, reason in (
        (of_all, "no clear gain"),
        ({IDS[0]: "a", IDS[1]: "b"}, "labels of too few classes"),
    ):
        unchanged = api.cluster(**easy, labels=labels_of_easy, output=tmp_path / "b", overwrite=True, overrides=fast)
        adaptation = unchanged.directory.results().adaptation
        assert (adaptation.used, unchanged.config.features.projection) == ("none", "none")
        assert reason in adaptation.reason


def bad_rows(value):
    rows = ROWS.copy()
    rows[7] = value
    return rows


BAD = {
    "NaN or infinite": {"features": bad_rows(np.nan)},
    "only zeros": {"features": bad_rows(0)},
    "a label for 999.png, but no such row": {"labels": {"999.png": "x"}},
    "twice": {"ids": [*IDS[:-1], IDS[0]]},
    "149 ids for 150 rows": {"ids": IDS[:-1]},
    "Python objects": {"features": ROWS.astype(object)},
    "unlabelled rows cannot form 497 new categories": {"n_classes": 500},
    "the labels name 3 classes but --n-classes is 2": {"n_classes": 2},
    "every row is labelled": {"labels": ["a", "b"] * 75},
    "features have no other method": {"overrides": ("method=gcd",)},
    "--keep-confirmed keeps": {"keep_confirmed": True},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_a_sentence_and_nothing_is_written(tmp_path, message):
    given = {"features": ROWS, "ids": IDS, "labels": LABELS, "n_classes": CLASSES, "output": tmp_path / "run"}
    with pytest.raises(PromptCALError, match=message):
        api.cluster(**given | BAD[message], progress=False)
    assert list(tmp_path.iterdir()) == []


class Trap:
    """Unpickling it writes a file into the working directory."""

    def __reduce__(self):
        return open, ("unpickled", "w")


def row_changed(number, value):
    rows = ROWS.copy()
    rows[number] = value
    return rows


BAD_FILES = {  # what the error says, and the arrays of the file
    r"row 7 \(007.png\) of .*bad.npz has a value that is NaN or infinite": {"features": row_changed(7, np.nan)},
    r"row 8 \(008.png\) of .*bad.npz has a value that is NaN or infinite": {"features": row_changed(8, -np.inf)},
    r"row 9 \(009.png\) of .*bad.npz has only zeros": {"features": row_changed(9, 0)},
    r"has the id 003.png twice": {"ids": np.array([*IDS[:-1], IDS[3]])},
    r"has 149 ids for 150 rows": {"ids": np.array(IDS[:-1])},
    r"row 5 of .*bad.npz has no id": {"ids": np.array([*IDS[:4], "", *IDS[5:]])},
    r"features in .*bad.npz holds Python objects, which are never unpickled": {
        "features": np.array([[Trap()] * WIDTH] * N, dtype=object)
    },
    r"ids in .*bad.npz holds Python objects": {"ids": np.array([Trap()] * N, dtype=object)},
}
BAD_FOR_CLUSTER = {  # the labels and the number of classes of the command
    r"there is a label for 999.png, but no such row": ({**LABELS, "999.png": "class 0"}, CLASSES),
    r"unlabelled rows cannot form 148 new categories": (LABELS, N + 1),
}


def refused(promptcal, folder, message, *words):
    """The command ends with one sentence that matches, and writes nothing."""
    before = sorted(folder.iterdir())
    code, out, err = promptcal(*words, "-q")
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"promptcal: [^\n]*{message}[^\n]*\n", err), err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("message", [*BAD_FILES, *BAD_FOR_CLUSTER])
def test_commands_refuse_bad_files_in_one_sentence_and_write_nothing(promptcal, run, tmp_path, monkeypatch, message):
    monkeypatch.chdir(tmp_path)
    labels, n_classes = BAD_FOR_CLUSTER.get(message, (LABELS, CLASSES))
    np.savez(tmp_path / "bad.npz", **{"features": ROWS, "ids": np.array(IDS)} | BAD_FILES.get(message, {}))
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{k},{v}\n" for k, v in labels.items()))
    words = ("--labels", tmp_path / "labels.csv", "--n-classes", n_classes, "--output", tmp_path / "new-run")
    refused(promptcal, tmp_path, message, "cluster", tmp_path / "bad.npz", *words)
    if message in BAD_FILES:
        words = ("predict", run.path, tmp_path / "bad.npz", "--output", tmp_path / "predictions.csv")
        refused(promptcal, tmp_path, message, *words)


def test_rows_of_another_width_are_refused_at_prediction(promptcal, run, tmp_path):
    np.savez(tmp_path / "bad.npz", features=ROWS[:, :3], ids=np.array(IDS))
    words = ("predict", run.path, tmp_path / "bad.npz", "--output", tmp_path / "predictions.csv")
    refused(promptcal, tmp_path, "has rows of 3 numbers and the run has 12", *words)


def test_images_and_features_are_not_mixed_up(run, tmp_path, place, common_settings):
    with pytest.raises(ConfigError, match="is for features, not for images"):
        api.fit(images=place / "images", n_classes=3, method="features", output=tmp_path / "a", progress=False)
    with pytest.raises(ConfigError, match="is for features, not for images"):
        api.fit(images=place / "images", start_from=run.path, output=tmp_path / "a", progress=False)
    of_images = api.fit(
        images=embedded_set("train").images[:20], n_classes=2, output=tmp_path / "b", progress=False, report=False,
        overrides=common_settings, method="kmeans",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="is a run on images"):
        api.cluster(features=ROWS, start_from=of_images.path, output=tmp_path / "a", progress=False)
    with pytest.raises(DataError, match="rows of 3 numbers"):
        api.cluster(features=ROWS[:, :3], start_from=run.path, output=tmp_path / "a", progress=False)
    assert not (tmp_path / "a").exists()


def test_a_stopped_command_leaves_nothing(tmp_path, monkeypatch):
    def stop(*given, **more):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("promptcal.pipeline.cluster.assign", stop)
    with pytest.raises(package.Interrupted, match="nothing was written"):
        api.cluster(features=ROWS, n_classes=3, output=tmp_path / "run", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_of_the_run(tmp_path, monkeypatch):
    def fail(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("promptcal.pipeline.finalize._write_report_inputs", fail)
    with pytest.raises(DataError, match="No space left on device"):
        api.cluster(features=ROWS, n_classes=3, output=tmp_path / "run", progress=False, overrides=FAST)
    assert not (tmp_path / "run" / "run.json").exists()
    assert not (tmp_path / "run" / "assignments.csv").exists()
