"""Several processes name, undo, report, predict, export and label one run at once: each succeeds or is refused."""

import os
import time

import pytest
from harness import _SERVER

from promptcal import api
from promptcal.errors import PromptCALError
from promptcal.run import Run

pytestmark = pytest.mark.slow
BACKBONE = "vit_tiny_patch4_32.promptcal"
SETTINGS = (f"model.backbone={BACKBONE}", "model.image_size=8", "clustering.n_init=2")
NAMES = {"class 0", "class 1", "goose", "new-1", "new-2"}
REFUSALS = (
    "is in use by another process",
    "was changed by another command after it was opened",
    "there is nothing to undo",
)


@pytest.fixture
def run(image_folder, tmp_path):
    given = {"images": image_folder, "labels": image_folder / "labels.csv", "n_classes": 4, "quick": True}
    api.fit(**given, output=tmp_path / "run", overrides=SETTINGS, progress=False)
    return tmp_path / "run"


def name(run, images, number):
    if number % 2:
        api.name(run=run, undo=True)
    else:
        api.name(run=run, labels=dict.fromkeys(images, "goose"))
    time.sleep(0.02)


def predict(run, images, number):
    found = api.predict(run=run, images=Run(run).info.folder, progress=False)
    assert ("new-1" in found.names) != ("goose" in found.names)
    assert set(found.categories) <= NAMES


def export(run, images, number):
    output = run.with_name(f"{os.getpid()}-{number}.csv")
    api.export(run=run, to="csv", output=output, progress=False)
    names = {line.split(",")[2] for line in output.read_text().splitlines()[1:]}
    assert ("new-1" in names) != ("goose" in names)


def report(run, images, number):
    api.make_report(run=run, progress=False)


def label(run, images, number):
    from promptcal.app.workspace import Workspace

    workspace = Workspace(run)
    workspace.snapshot()
    workspace.close()


def repeat(work, run, images, seconds, answers):
    done, end = 0, time.monotonic() + seconds
    for number in range(10**9):
        if time.monotonic() > end:
            break
        try:
            work(run, images, number)
            done += 1
        except PromptCALError as error:
            if not any(reason in str(error) for reason in REFUSALS):
                raise
    answers.put(done)


def test_many_commands_on_one_run(run):
    found = Run(run).assignments()
    images = [path for path, category in zip(found.paths, found.categories, strict=True) if category == "new-1"]
    answers, works = _SERVER.SimpleQueue(), (name, name, report, predict, export, label)
    processes = [_SERVER.Process(target=repeat, args=(work, run, images, 20, answers)) for work in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(works)
    assert all(answers.get() > 0 for _ in works)
    assert set(Run(run).assignments().names) <= NAMES
