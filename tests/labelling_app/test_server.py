"""The server: actions, undo after a restart, events, runs that are damaged, in training or without images."""

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from serving import Client, served

from promptcal import api
from promptcal.app.actions import Create
from promptcal.app.hub import Hub
from promptcal.app.label_store import DiskFullError
from promptcal.app.workspace import Workspace
from promptcal.errors import RunError
from promptcal.run.directory import RunDirectory


def column(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def test_actions_are_answered_with_what_changed_and_survive_a_restart(run_path):
    with served(run_path) as client:
        data = client.get("api/run")
        assert len(data["paths"]) == 48
        assert [c["name"] for c in data["state"]["categories"]] == ["class 0", "class 1", "new-1", "new-2", "new-3"]
        change = client.act("assign", images=[40, 3, 41], category=1)
        assert change["previous"] == data["state"]["version"]
        assert column(change["images"], "<u4").tolist() == [3, 40, 41]
        assert column(change["category"], "<i4").tolist() == [1, 1, 1]
        assert column(change["status"], "u1").tolist() == [2, 2, 2]
        client.act("rename", category=2, name="great tit")
        client.act("none", images=[5])
        assert client.post("api/undo")["redo"] == "mark 1 image as none of these"
    with served(run_path) as client:
        state = client.get("api/state")
        assert (state["undo"], state["redo"]) == ("name a category great tit", "mark 1 image as none of these")
        assert state["categories"][2] == {"name": "great tit", "known": False, "confirmed": True, "mergedInto": None}
        client.post("api/redo")
        assert column(client.get("api/state")["category"], "<i4")[5] == -1
        for _ in range(3):
            client.post("api/undo")
        assert client.get("api/state")["undo"] is None
        assert column(client.get("api/state")["status"], "u1").max() == 1
        titles = [action["title"] for action in client.get("api/history")["actions"]]
        assert titles[0] == "label 3 images as class 1"


def test_an_existing_name_is_an_offer_to_merge(client):
    answer = client.post("api/action", {"kind": "rename", "category": 2, "name": "CLASS 0"}, 409)
    assert answer["category"] == 0
    assert "merge" in answer["error"]
    assert client.post("api/action", {"kind": "assign", "images": [], "category": 0}, 400)["error"].startswith(
        "no image"
    )


def events_of(client, n, ready):
    """The next events of a page that listens."""
    connection = http.client.HTTPConnection(client.host, client.port, timeout=20)
    connection.request("GET", f"{client.page}api/events", headers=client.headers())
    answer, found = connection.getresponse(), []
    while len(found) < n:
        line = answer.readline().decode().strip()
        if line.startswith("event:"):
            kind = line.removeprefix("event: ")
        elif line.startswith("data:"):
            found.append((kind, json.loads(line.removeprefix("data: "))))
            ready.set()
    connection.close()
    return found


def test_every_page_is_told_what_another_one_does(client):
    found, ready = [], threading.Event()
    thread = threading.Thread(target=lambda: found.extend(events_of(client, 3, ready)))
    thread.start()
    assert ready.wait(10)
    client.act("assign", images=[7], category=0)
    client.post("api/undo")
    thread.join(10)
    assert [kind for kind, _ in found] == ["hello", "change", "change"]
    assert column(found[1][1]["category"], "<i4").tolist() == [0]
    assert found[2][1]["previous"] == found[1][1]["version"]


def test_a_run_is_served_only_once(client, run_path):
    client.get("api/run")
    with pytest.raises(RunError, match="in use by another process"):
        Hub(run_path).workspace("run")


def test_labels_follow_a_run_that_gets_another_result(run_path, finished_run):
    with served(run_path) as client:
        client.act("assign", images=[1, 2], category=0)
        client.act("none", images=[3])
        client.act("create", name="great tit", images=[4])
        paths = client.get("api/run")["paths"]
        members = np.flatnonzero(column(client.get("api/state")["category"], "<i4") == 3)
        api.name(run=run_path, labels={paths[i]: "owl" for i in members})
        assert client.get("api/state")["categories"][3]["name"] == "new-2"  # still the old result
        client.post("api/reload")
        data = client.get("api/run")
        names = [c["name"] for c in data["state"]["categories"]]
        assert "owl" in names
        assert "great tit" in names
        category, status = column(data["state"]["category"], "<i4"), column(data["state"]["status"], "u1")
        assert [names[c] for c in category[[1, 2, 4]]] == ["class 0", "class 0", "great tit"]
        assert (category[3], status[3]) == (-1, 3)
        assert "carried over" in data["notices"][0]
    assert (run_path / "labels-1.sqlite").is_file()


def test_a_run_in_training_without_images_or_damaged_says_what_still_works(run_path, tmp_path):
    directory = RunDirectory(run_path)
    directory.update_info(status="training", folder=str(tmp_path / "gone"))
    with served(run_path) as client:
        notices = client.get("api/run")["notices"]
        assert "Training is not finished" in notices[0]
        assert "image files are not in" in notices[1]
        assert "Labelling and export work" in notices[1]
        status, headers, _ = client.ask("GET", f"{client.page}image/0/320")
        assert (status, headers["X-Original"]) == (200, "no")  # the stored thumbnail
        client.act("assign", images=[1], category=0)
    directory.update_info(status="running")
    with pytest.raises(RunError, match="is not finished; run its fit again with --resume"):
        Hub(run_path).workspace("run")
    directory.update_info(status="finished")
    directory.assignments_file.write_text("path\n")
    with pytest.raises(RunError, match="changed since the fit wrote it"):
        Hub(run_path).workspace("run")
    directory.info_file.write_text(directory.info_file.read_text().replace('"format": ', '"format": 9'))
    with pytest.raises(RunError, match="upgrade promptcal"):
        Hub(run_path).workspace("run")


def test_a_folder_of_runs_lists_them_with_what_is_wrong(run_path):
    folder = run_path.parent
    shutil.copytree(run_path, folder / "second")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    (folder / "no run").mkdir()
    with served(folder) as client:
        assert client.page == "/"
        found = {run["name"]: run for run in client.get("api/runs")["runs"]}
        assert sorted(found) == ["broken", "run", "second"]
        assert "is damaged" in found["broken"]["problem"]
        assert (found["run"]["problem"], found["run"]["n_images"], found["run"]["n_categories"]) == ("", 48, 5)
        assert len(client.get("r/second/api/run")["paths"]) == 48
        assert b"is damaged" in client.ask("GET", "/r/broken/api/run")[2]


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_the_command_serves_and_a_kill_loses_nothing_that_was_acknowledged(run_path, way):
    command = [sys.executable, "-m", "promptcal", "serve", str(run_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    client = Client(process.stdout.readline().removeprefix("Open ").strip())
    client.act("assign", images=[9], category=1)
    os.kill(process.pid, way)
    output, errors = process.communicate(timeout=30)
    if way == signal.SIGINT:
        assert process.returncode == 130, errors
        assert output.splitlines()[-1] == "Stopped. All labels are saved."
    with served(run_path) as again:
        assert again.get("api/state")["undo"] == "label 1 image as class 1"


def test_a_full_disk_while_saving_is_said_and_nothing_changes(run_path):
    with served(run_path) as client:
        client.get("api/run")

    workspace = Workspace(run_path)
    pages = workspace.store._connection.execute("PRAGMA page_count").fetchone()[0]
    workspace.store._connection.execute(f"PRAGMA max_page_count = {pages}")

    name = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 190)))

    def fill():
        for i in range(1000):
            workspace.act(Create(name=f"{i} {name}", images=[i % 48]))

    with pytest.raises(DiskFullError, match="not saved; free some space and do it again"):
        fill()
    assert len(workspace.state.categories) == 5 + len(workspace.store.actions())
    workspace.close()


def test_pictures_that_were_scrolled_away_are_not_made(run_path, monkeypatch):
    hub, made, is_open = Hub(run_path), [], threading.Event()

    def get(image, side):
        made.append(image)
        is_open.wait(20)

    with served(hub) as client:
        client.get("api/run")
        monkeypatch.setattr(hub.workspace("run").pictures, "get", get)
        connections = []
        for image in range(30):  # as a page that is scrolled: it asks, and leaves before there is an answer
            connection = http.client.HTTPConnection(client.host, client.port, timeout=20)
            connection.request("GET", f"{client.page}image/{image}/160", headers=client.headers())
            connections.append(connection)
        while not made:
            time.sleep(0.01)
        time.sleep(0.3)
        client.act("assign", images=[1], category=1)  # does not wait for them
        for connection in connections:
            connection.close()
        time.sleep(0.3)
        is_open.set()
        time.sleep(0.3)
        assert 1 <= len(made) <= max(2, os.cpu_count() or 2)
