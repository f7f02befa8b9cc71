"""From a folder of images to a run, by a real server: check, questions, fit in the background, first result, resume."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from serving import served

from promptcal.app.actions import Assign
from promptcal.app.first_fit import StartRequest, list_folder
from promptcal.app.fit_process import FitProcess, parse_progress
from promptcal.app.refit_jobs import RefitJobs
from promptcal.app.server import hub_of
from promptcal.app.workspace import Workspace, open_store
from promptcal.errors import ConfigError, LabelError, RunError
from promptcal.run.directory import RunDirectory

CHOICE = {"n_classes": 5, "quick": False, "skip_unreadable": False}


@pytest.fixture
def photos(small_folder, tmp_path):
    """The small folder, its labels beside it."""
    folder = shutil.copytree(small_folder, tmp_path / "photos")
    (folder / "labels.csv").rename(tmp_path / "labels.csv")
    return folder


def hub(photos, *, labels=True, n_classes=None, settings=()):
    return hub_of(photos, photos.parent / "labels.csv" if labels else None, n_classes, None, settings)


def wait_for(client, phase, seconds=120, **wanted):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = client.get("api/state")
        if found["phase"] == phase and all(found[name] == value for name, value in wanted.items()):
            return found
        if phase != "asking" and found["problem"]:
            break
        time.sleep(0.1)
    raise AssertionError(found)


def test_a_folder_is_checked_and_fitted_and_its_first_result_can_be_labelled(photos, quick_settings):
    (photos / "zz.png").write_text("no image")
    with served(hub(photos, settings=quick_settings)) as client:
        found = wait_for(client, "asking", is_checked=True)
        assert client.page == "/"
        assert (found["report"]["images"], found["report"]["unlabelled"], found["report"]["unreadable"]) == (49, 36, 1)
        assert sorted(found["report"]["classes"]) == [["class 0", 6], ["class 1", 6]]
        assert "zz.png" in found["report"]["problems"][0]["cases"][0]
        assert b"first-fit.js" in client.ask("GET", "/")[2]
        client.post("api/fit/start", CHOICE)
        assert "cannot read" in wait_for(client, "asking", has_result=False)["problem"]
        client.post("api/fit/start", {**CHOICE, "skip_unreadable": True})
        assert "still running" in client.post("api/fit/start", CHOICE, status=400)["error"]
        wait_for(client, "fitting", has_result=True)
        data = json.loads(client.ask("GET", "/r/photos-run/api/run")[2])
        assert len(data["paths"]) == 48
        assert data["fit"]["phase"] == "fitting"
        assert data["home"] == "Fit"
        assert "first result" in data["notices"][0]
        body = {"kind": "assign", "images": [30], "category": 0}
        assert client.ask("POST", "/r/photos-run/api/action", body)[0] == 200
        found = wait_for(client, "finished")
        assert any(message.startswith("First result after") for message in found["messages"])
        assert client.ask("POST", "/r/photos-run/api/reload", {})[0] == 200
        data = json.loads(client.ask("GET", "/r/photos-run/api/run")[2])
        assert "carried over" in data["notices"][0]
    assert RunDirectory(photos.parent / "photos-run").info().status == "finished"
    assert not (photos.parent / ".photos-run.json").exists()
    with served(hub(photos)) as client:  # again: the run is there
        assert client.get("api/state")["phase"] == "finished"


@pytest.mark.slow
def test_a_cancelled_fit_is_continued_after_a_restart(photos, quick_settings):
    settings = (*quick_settings, "warmup.epochs=40")
    with served(hub(photos, n_classes=5, settings=settings)) as client:
        assert wait_for(client, "asking")["nClasses"] == 5
        client.post("api/fit/start", CHOICE)
        wait_for(client, "fitting", has_result=True)
        client.post("api/fit/cancel")
        found = wait_for(client, "asking", can_resume=True)
        assert (found["problem"], found["has_result"]) == ("The fit was cancelled.", True)
    with served(hub(photos, settings=settings)) as client:
        assert client.get("api/state")["can_resume"]
        client.post("api/fit/resume")
        while not any("Training on" in message for message in wait_for(client, "fitting")["messages"]):
            time.sleep(0.1)
        client.post("api/fit/cancel")
        assert wait_for(client, "asking")["problem"] == "The fit was cancelled."


def test_a_fit_can_start_before_every_image_was_read(photos, quick_settings):
    """Reading all images of a large folder takes minutes; here, 30 large ones take seconds."""
    random = np.random.default_rng(0)
    large = Image.fromarray(random.integers(0, 255, (2500, 2500, 3), dtype=np.uint8))
    large.save(photos / "large-0.png", compress_level=1)
    for i in range(1, 30):
        os.link(photos / "large-0.png", photos / f"large-{i}.png")
    (photos / "zz.png").write_text("no image")
    start = time.monotonic()
    with served(hub(photos, settings=quick_settings)) as client:
        found = wait_for(client, "asking")
        assert time.monotonic() - start < 3
        assert not found["is_checked"]
        assert (found["report"]["images"], found["report"]["unlabelled"], found["total"]) == (79, 67, 79)
        client.post("api/fit/start", CHOICE)
        found = wait_for(client, "asking", has_result=False)  # the fit finds the file that cannot be read
        assert "zz.png" in found["problem"]
        for i in range(30):
            (photos / f"large-{i}.png").unlink()
        found = wait_for(client, "asking", is_checked=True)  # the check has started again
        assert "zz.png" in found["problem"]


def test_labels_are_asked_for_and_can_be_sent(photos):
    with served(hub(photos, labels=False)) as client:
        found = wait_for(client, "asking")
        assert (found["labels"], found["report"]["classes"]) == ("", [])
        client.post("api/fit/labels", b"path,label\nnothing.png,cat\n")
        assert "nothing.png" in wait_for(client, "asking")["problem"]
        client.post("api/fit/labels", (photos.parent / "labels.csv").read_bytes())
        found = wait_for(client, "asking", is_checked=True)
        assert (len(found["report"]["classes"]), found["problem"]) == (2, "")
        assert "not valid" in client.post("api/fit/start", {**CHOICE, "n_classes": "many"}, status=400)["error"]
        assert "no unfinished run" in client.post("api/fit/resume", status=400)["error"]
        assert client.ask("POST", "/api/fit/other")[0] == 404
        assert b"no run called" in client.ask("GET", "/r/other/api/run")[2]


def test_what_is_doubtful_in_a_label_file_is_shown_before_and_after_every_image_is_read(photos, recwarn):
    (photos.parent / "labels.csv").write_bytes("path,label\n000.png,Bläuling\n001.png,cat\n".encode("cp1252"))
    with served(hub(photos)) as client:
        checked = wait_for(client, "asking", is_checked=True)["report"]
    for report in (list_folder(photos, photos.parent / "labels.csv"), checked):
        assert "labels.csv is not UTF-8 and is read as Windows-1252" in report["warnings"][0]["what"]
    assert len(recwarn) == 0


def test_what_a_path_cannot_show_is_one_sentence(photos, run_path, tmp_path):
    with pytest.raises(RunError, match="is not a folder"):
        hub_of(tmp_path / "missing", None, None, None, ())
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no images; give the --output of a fit, or the images"):
        hub_of(tmp_path / "empty", None, None, None, ())
    with pytest.raises(ConfigError, match="--labels is for a folder of images"):
        hub_of(run_path, tmp_path / "labels.csv", None, None, ())
    with pytest.raises(LabelError, match="none.csv does not exist"):
        hub_of(photos, tmp_path / "none.csv", None, None, ())
    with pytest.raises(RunError, match="lies in the image folder"):
        hub_of(photos, None, None, photos / "run", ())
    assert hub_of(run_path.parent, None, None, None, ()).is_folder
    with served(run_path) as client:
        assert client.ask("GET", "/api/state")[0] == 400


def test_progress_is_read_from_the_lines_of_a_fit():
    assert parse_progress("reading and embedding: 3 of 48") == ("reading and embedding", 3, 48)
    assert parse_progress("PromptCAL: epoch 2 of 9, 50 % of the held-out labels are right")[1:] == (2, 9)
    assert parse_progress("Training takes about 2 min") == ("Training takes about 2 min", 0, 0)


def test_the_server_imports_no_numerical_library_before_something_is_computed(run_path):
    """Its memory would be five times as large."""
    script = """
import sys
from pathlib import Path
from promptcal.app.hub import Hub
from promptcal.app import server
from promptcal.app.actions import Assign
with server.bound_server(hub := Hub(Path(sys.argv[1])), port=0):
    workspace = hub.workspace(hub.keys()[0])
    workspace.act(Assign(images=[1], category=0))
    workspace.snapshot(), workspace.notices(), workspace.pictures.get(0, 160), hub.jobs(hub.keys()[0]).record()
    hub.close()
print(*(name for name in ("torch", "torchvision", "timm", "scipy", "sklearn", "pandas") if name in sys.modules))
"""
    command = [sys.executable, "-c", script, str(run_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == ""


HOSTILE_STARTS = {
    "with other settings; start promptcal serve with --set data.cache=/tmp/x": {"settings": ["data.cache=/tmp/x"]},
    "is damaged .*: Extra inputs": {"output": "/tmp/x"},
    "is damaged .*n_classes": {"n_classes": "--overwrite"},
    "is damaged .*quick": {"quick": "--overwrite"},
}


@pytest.mark.parametrize("message", HOSTILE_STARTS)
def test_a_file_beside_the_images_does_not_decide_what_is_executed(photos, run_path, message):
    """The images, an unfinished run and the options of its fit may be from somebody else."""
    unfinished = shutil.copytree(run_path, photos.parent / "photos-run")
    RunDirectory(unfinished).update_info(status="training")
    started = {**CHOICE, "labels": None, "settings": [], **HOSTILE_STARTS[message]}
    (photos.parent / ".photos-run.json").write_text(json.dumps(started))
    found = hub(photos)
    try:
        with pytest.raises(RunError, match=message):
            found.first_fit.resume()
        assert found.first_fit.status()["phase"] == "asking"
    finally:
        found.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_written_through_a_link(photos, run_path, tmp_path, monkeypatch, is_there):
    """Links planted at every name that the app writes itself; each leads to a file outside, or to none."""
    outside = tmp_path / "outside"
    outside.mkdir()
    planted = [photos.parent / ".photos-run.json", photos.parent / "labels-for-photos-run.csv"]
    planted += [run_path / "labels-for-run-2.csv", run_path / "labels-1.sqlite"]
    for number, place in enumerate(planted):
        place.symlink_to(outside / str(number))
        if is_there:
            (outside / str(number)).write_text("precious")
    before = {path: path.read_bytes() for path in outside.iterdir()}

    def end(process, on_progress):
        raise RunError("it has ended")

    monkeypatch.setattr(FitProcess, "run", end)
    found = hub(photos)
    try:
        found.first_fit.use_labels(b"path,label\n000.png,cat\n")
        while found.first_fit.status()["phase"] == "checking":
            time.sleep(0.05)
        found.first_fit.start(StartRequest(**CHOICE))
    finally:
        found.close()
    workspace = Workspace(run_path)
    workspace.act(Assign(images=[0], category=1))
    jobs = RefitJobs(workspace)
    jobs.start("fit")
    while jobs.record()["phase"] == "running":
        time.sleep(0.05)
    jobs.close()
    workspace.close()
    other = replace(workspace.assignments, names=[f"other {name}" for name in workspace.assignments.names])
    store, told = open_store(run_path, other)  # another result: the old labels are kept
    store.close()
    assert "were carried over" in told
    written = [place for place in planted if not place.is_symlink()]
    assert planted[2] in written
    assert {path: path.read_bytes() for path in outside.iterdir()} == before
