"""Splits and refits against other libraries, exports and imports, and refits in the background of a real server."""

import csv
import errno
import io
import json
import multiprocessing
import shutil
import time

import numpy as np
import pytest
from serving import served
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from test_label_state import assignments
from test_server import column

from promptcal.app import label_state as states
from promptcal.app.actions import AcceptRefit
from promptcal.app.computations import EmbeddingFile
from promptcal.app.label_formats import read_labels_file, to_csv, to_label_studio
from promptcal.app.label_state import LabelState
from promptcal.app.quick_refits import centroids_of, quick_refit, rows_of, split_parts
from promptcal.app.refit_jobs import RefitJobs, checked_words
from promptcal.app.side_process import SideProcess
from promptcal.app.workspace import Workspace
from promptcal.data.images import ImageSet
from promptcal.data.sources import FileSource
from promptcal.errors import LabelError, RunError
from promptcal.run.assignments import Assignments


def blobs(sizes, spread, dim=16, seed=0):
    """L2-normalised points around random directions, and the direction of each."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(len(sizes), dim))
    truth = np.repeat(np.arange(len(sizes)), sizes)
    points = centres[truth] + spread * random.normal(size=(len(truth), dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), truth


def test_a_split_is_that_of_k_means_with_the_largest_part_first():
    points, truth = blobs([20, 60, 40], 0.25)
    parts = split_parts(points, 3)
    assert np.bincount(parts).tolist() == [60, 40, 20]
    assert adjusted_rand_score(parts, truth) == 1
    assert adjusted_rand_score(parts, KMeans(3, n_init=5, random_state=0).fit_predict(points)) == 1
    assert np.array_equal(parts, split_parts(points, 3))


def test_a_split_of_many_images_assigns_those_that_were_not_clustered():
    points, truth = blobs([9000, 6000], 0.3)
    assert adjusted_rand_score(split_parts(points, 2), truth) == 1


@pytest.mark.parametrize("order", ["C", "F"])
def test_embeddings_in_a_file_give_the_same_as_in_memory(tmp_path, order):
    points, truth = blobs([3000, 4000, 5000], 0.3)
    np.save(tmp_path / "embeddings.npy", np.asarray(points, order=order))
    stored = EmbeddingFile(np.load(tmp_path / "embeddings.npy", mmap_mode="r"))
    images = np.random.default_rng(0).permutation(len(points))[:11_000]
    assert np.array_equal(rows_of(stored, images).numpy(), points[images])
    assert np.array_equal(split_parts(stored, 3, images), split_parts(points[images], 3))
    members = np.where(np.arange(len(points)) % 7 == 0, -1, truth)
    means = [points[members == c].astype(np.float64).mean(axis=0) for c in range(3)]
    assert np.allclose(centroids_of(stored, members, 4).numpy(), [*means, np.zeros(16)], atol=1e-6)
    state = states.create(state_of(truth, ["a", "b", "c"], [True] * 3), "owl", [0, 1, 2])
    (_, found), (_, expected) = quick_refit(stored, state, 1.0), quick_refit(points, state, 1.0)
    assert np.array_equal(found.category, expected.category)


def test_images_that_cannot_be_split_are_said():
    with pytest.raises(LabelError, match="too similar"):
        split_parts(np.ones((5, 4), dtype=np.float32), 2)
    with pytest.raises(LabelError, match="2 images cannot be split into 3"):
        split_parts(np.eye(2, dtype=np.float32), 3)
    with pytest.raises(LabelError, match="2 to 12 parts, not 13"):
        split_parts(np.eye(20, dtype=np.float32), 13)


def state_of(clusters, names, known):
    n = len(clusters)
    nothing, zeros = np.full(n, -1), np.zeros(n)
    found = Assignments([f"{i}.png" for i in range(n)], clusters, zeros, names, known, zeros > 0, nothing, zeros)
    return LabelState.of(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_quick_refit_finds_a_category_that_a_few_labels_created(seed):
    """Two groups are in one cluster. Eight labels of one of them as a new category bring the others along."""
    points, truth = blobs([80, 80, 80], 0.35, seed=seed)
    state = state_of(np.where(truth == 2, 1, truth), ["cat", "new-1"], [True, False])
    state = states.none_of_these(states.create(state, "owl", np.flatnonzero(truth == 2)[:8].tolist()), [0])
    names, found = quick_refit(points, state, 1.0)
    assert names == ["cat", "new-1", "owl"]
    after = states.predict_again(state, names, found, None)
    rest = np.setdiff1d(np.flatnonzero(truth == 2), np.flatnonzero(truth == 2)[:8])
    right = (after.category[rest] == 2).mean()
    print(f"{right:.3f} of the images of the new category are found by 8 labels")
    assert right > 0.9
    assert (after.category[truth < 2][1:] == truth[truth < 2][1:]).mean() > 0.95
    assert after.category[0] == -1


def test_one_category_cannot_be_refitted():
    state = state_of(np.zeros(4, dtype=int), ["cat"], [True])
    with pytest.raises(LabelError, match="not labelled or named anything"):
        quick_refit(np.eye(4, dtype=np.float32), state, 1.0)
    with pytest.raises(LabelError, match="fewer than two categories"):
        quick_refit(np.eye(4, dtype=np.float32), states.accept(state, [0]), 1.0)


@pytest.mark.parametrize(
    "words", [["rm", "-rf"], ["fit"], ["fit", "--set"], ["fit", "photos", "--set", "data.cache=/x"], ["export", "run"]]
)
def test_a_run_from_somebody_else_does_not_decide_what_is_executed(words):
    with pytest.raises(LabelError, match="does not repeat by itself"):
        checked_words(words)
    with pytest.raises(LabelError, match="given in Python"):
        checked_words([])
    for options in (["--skip-unreadable", "--truth", "t.csv"], ["--keep", "trained", "--allow-long"]):
        assert checked_words(["fit", "/photos", *options])[1] == "/photos"


# -- files -------------------------------------------------------------------------------------------------


@pytest.fixture
def labelled():
    state = LabelState.of(assignments())
    state = states.none_of_these(states.assign(state, [1], 0), [3])
    return states.rename(state, 2, 'great "tit", or so')


def images_of(paths):
    return ImageSet(paths, FileSource([]), None), list(range(len(paths)))


def labels_by_image(state):
    return {i: name for i, name in enumerate(state.label_names()) if name is not None}


def test_a_label_store_from_somebody_else_does_not_decide_where_a_fit_is_written(run_path, tmp_path):
    """An accepted refit names its run, beside which the next fit is written."""
    other = shutil.copytree(run_path, tmp_path / "precious" / "run")
    workspace = Workspace(run_path)
    try:
        state = workspace.state
        names = [category.name for category in state.categories]
        workspace.act(AcceptRefit.of(names, state.predictions, str(other)))
        with pytest.raises(LabelError, match="not beside this run; open it on its own"):
            RefitJobs(workspace).command()
        beside = shutil.copytree(run_path, run_path.with_name("run-2"))
        workspace.act(AcceptRefit.of(names, state.predictions, str(beside)))
        assert RefitJobs(workspace).command()[-2] == str(run_path.with_name("run-3"))
    finally:
        workspace.close()
    assert sorted(path.name for path in other.parent.iterdir()) == ["run"]


def test_a_process_that_cannot_be_started_is_a_sentence(monkeypatch):
    computer = SideProcess()

    def fail(process):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", fail)
    for _ in range(2):
        with pytest.raises(RunError, match="probably because the memory is full"):
            computer.call("computations.split_parts")
    computer.close()


def test_labels_survive_the_way_to_label_studio_and_back(labelled):
    paths = assignments().paths
    text = to_label_studio(paths, labelled, "run")
    tasks = json.loads(text)
    assert tasks[1]["annotations"][0]["result"][0]["value"] == {"choices": ["cat"]}
    assert tasks[2]["predictions"][0]["result"][0]["value"] == {"choices": ["new-1"]}
    assert (tasks[2]["annotations"], tasks[3]["annotations"]) == ([], [{"result": []}])
    found = read_labels_file(text.encode(), *images_of(paths))
    assert found == labels_by_image(labelled)
    again = states.import_labels(LabelState.of(assignments()), found)
    assert again.label_names() == labelled.label_names()


def test_an_error_of_an_imported_file_names_the_file_of_the_user():
    with pytest.raises(LabelError, match=r"^mine\.csv\b") as error:
        read_labels_file(b"image,label\nnobody.png,owl\n", *images_of(assignments().paths), "mine.csv")
    assert "labels.csv" not in str(error.value)


def test_what_label_studio_exports_is_read(labelled):
    """Its own JSON has other fields; pictures from its storage are recognised by the end of their address."""
    result = [{"from_name": "c", "to_name": "i", "type": "choices", "value": {"choices": ["owl"]}, "id": "x"}]
    annotations = [{"id": 7, "was_cancelled": False, "result": result}, {"was_cancelled": True, "result": []}]
    tasks = [
        {"id": 1, "data": {"image": "/data/local-files/?d=0.png"}, "annotations": annotations},
        {"id": 2, "data": {"image": "/data/local-files/?d=1.png"}, "annotations": []},
    ]
    assert read_labels_file(json.dumps(tasks).encode(), *images_of(assignments().paths)) == {0: "owl"}
    short = [{"image": "2.png", "choice": "owl", "annotator": 1}]
    assert read_labels_file(json.dumps(short).encode(), *images_of(assignments().paths)) == {2: "owl"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", "not JSON of Label Studio"), (b"[1]", "not JSON of Label Studio"), (b"[]", "no label for any image"),
        (b'[{"data": {}, "annotations": [{"result": []}]}]', "has no image"),
        (b'[{"image": "x.png", "choice": "a"}]', "x.png"), (b"a,b\n1,2\n", "needs a header"),
        (b'[{"data": {"path": "0.png"}, "annotations": [{"result": [{"value": {"choices": ["a", "b"]}}]}]}]', "sever"),
    ],
)  # fmt: skip
def test_other_files_are_one_sentence(content, message):
    with pytest.raises(LabelError, match=message):
        read_labels_file(content, *images_of(assignments().paths))


def test_csv_is_the_file_that_fit_reads(labelled):
    text = to_csv(assignments().paths, labelled.label_names())
    assert list(csv.reader(io.StringIO(text)))[1:4] == [["0.png", "cat"], ["1.png", "cat"], ["3.png", ""]]
    assert read_labels_file(text.encode(), *images_of(assignments().paths)) == labels_by_image(labelled)


# -- the server --------------------------------------------------------------------------------------------


def wait_for(client, phase, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = client.get("api/refit")
        if found["phase"] == phase:
            return found
        time.sleep(0.1)
    raise AssertionError(found)


@pytest.mark.slow
def test_a_quick_refit_is_proposed_accepted_and_undone(run_path):
    (run_path / "map.npz").unlink()  # so that it is computed
    with served(run_path) as client:
        before = column(client.get("api/state")["category"], "<i4")
        client.act("create", name="great tit", images=[20, 21, 22, 23])
        client.post("api/refit/quick")
        found = wait_for(client, "ready")
        moved = found["moved"]
        assert moved["n"] == sum(n for _, _, n in moved["flows"]) == len(column(moved["images"], "<u4"))
        assert client.get("api/state")["undo"].startswith("create")  # a proposal changes nothing
        client.post("api/refit/accept")
        state = client.get("api/state")
        after = column(state["category"], "<i4")
        assert np.array_equal(after[column(moved["images"], "<u4")], column(moved["to"], "<i4"))
        assert (after[[20, 21, 22, 23]] == 5).all()
        assert client.get("api/refit")["attempts"][0]["status"] == "accepted"
        client.post("api/undo")
        client.post("api/undo")
        assert np.array_equal(column(client.get("api/state")["category"], "<i4"), before)
        assert "no refit to accept" in client.post("api/refit/accept", status=400)["error"]
        exported = client.ask("GET", f"{client.page}export/csv")
        assert exported[1]["Content-Disposition"] == 'attachment; filename="run-labels.csv"'
        assert len(list(csv.reader(io.StringIO(exported[2].decode())))) == 13
        coco = json.loads(client.ask("GET", f"{client.page}export/coco")[2])
        assert (len(coco["images"]), coco["images"][0]["width"], len(coco["categories"])) == (12, 32, 2)
        tasks = client.ask("GET", f"{client.page}export/label-studio")[2]
        assert client.post("api/import?name=tasks.json", tasks)["n"] == 12
        parts = client.post("api/split-preview", {"images": list(range(48)), "n": 2})["parts"]
        assert set(column(parts, "u1").tolist()) == {0, 1}
        assert len(column(client.get("api/map")["coordinates"], "<f4")) == 96


@pytest.mark.slow
def test_a_new_fit_runs_in_the_background_is_shown_accepted_and_can_be_cancelled(run_path):
    with served(run_path) as client:
        command = client.get("api/refit")["command"]
        assert "--from" in command
        client.act("rename", category=2, name="great tit")
        client.post("api/refit/fit")
        assert "is running" in client.post("api/refit/quick", status=400)["error"]
        client.act("assign", images=[1], category=0)  # labelling goes on
        found = wait_for(client, "ready")
        assert (run_path.parent / "run-2" / "assignments.csv").is_file()
        assert found["attempts"][0]["output"].endswith("run-2")
        client.post("api/refit/accept")
        assert client.get("api/state")["run"].endswith("run-2")
        client.post("api/refit/fit")
        time.sleep(0.3)
        client.post("api/refit/cancel")
        assert wait_for(client, "idle")["attempts"][0]["status"] == "cancelled"
