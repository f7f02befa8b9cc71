"""The example packages, installed as a user would: a method and a benchmark that the package does not know."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptcal.data import embedded_set

EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = (
    "model.backbone=vit_tiny_patch4_32.promptcal",
    "model.image_size=16",
    "data.batch_size=16",
    "optim.epochs=3",
    "clustering.n_init=2",
    "selection.by=last",
    "tensorboard=false",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment in which both packages are installed."""
    target, sources = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("sources")
    for name in ("own_method", "own_benchmark"):
        package = sources / name
        package.mkdir()
        for file in (EXAMPLES / name).glob("*.*"):
            (package / file.name).write_text(file.read_text())  # a build writes into its folder
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*install, "--target", target, package], check=True)
    path = os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Four classes of 12 training images in the benchmark's layout."""
    folder, data = tmp_path_factory.mktemp("data"), embedded_set("train")
    for c in range(4):
        place = folder / "pets" / "train" / data.classes[c]
        place.mkdir(parents=True)
        for i in np.flatnonzero(data.labels == c)[:12]:
            Image.fromarray(data.images[i]).save(place / f"{i:04d}.png")
    return folder


def command(*arguments, settings=SETTINGS):
    overrides = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "promptcal", *map(str, arguments), *overrides]


def promptcal(environment, *arguments, settings=SETTINGS):
    done = subprocess.run(command(*arguments, settings=settings), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def benchmark(root, output):
    return ("benchmark", "pets", "--method", "fixmatch", "--root", root, "--output", output, "--quiet")


@pytest.fixture(scope="module")
def run(environment, root, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    promptcal(environment, *benchmark(root, output))
    return output


def test_the_method_is_a_package_of_under_60_lines():
    lines = [line for file in (EXAMPLES / "own_method").glob("*.*") for line in file.read_text().splitlines()]
    assert len(lines) < 60


def test_help_and_listing_name_method_and_benchmark(environment):
    assert "fixmatch" in promptcal(environment, "fit", "--help", settings=())
    assert "pets" in promptcal(environment, "datasets", settings=())


def test_fit_writes_assignments_and_a_report(run):
    assert len((run / "assignments.csv").read_text().splitlines()) == 1 + 48
    assert "FixMatch" in (run / "report.html").read_text()
    assert "fixmatch:" in (run / "config.yaml").read_text()


def test_a_killed_fit_is_resumed_bit_equal(environment, root, run, tmp_path):
    output = tmp_path / "killed"
    with subprocess.Popen(command(*benchmark(root, output)), env=environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not (output / "checkpoints" / "last.pt").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not (output / "assignments.csv").exists()
    promptcal(environment, *benchmark(root, output), "--resume")
    for file in ("assignments.csv", "embeddings.npy"):
        assert (output / file).read_bytes() == (run / file).read_bytes()


def test_predict_in_a_new_process_agrees_with_the_fit(environment, root, run):
    rows = promptcal(environment, "predict", run, root / "pets", "--accept-all", "--quiet", settings=()).splitlines()
    fitted = (run / "assignments.csv").read_text().splitlines()
    predicted = {row.split(",")[0]: row.split(",")[2] for row in rows[1:]}
    unlabelled = [row.split(",") for row in fitted[1:] if row.split(",")[5] == "no"]
    assert unlabelled
    assert all(predicted[row[0]] == row[2] for row in unlabelled)


def test_report_is_written_again(environment, run):
    (run / "report.html").unlink()
    promptcal(environment, "report", run, settings=())
    assert "FixMatch" in (run / "report.html").read_text()


def test_a_table_of_ones_own_has_a_row_of_the_method(environment, root, tmp_path):
    table = tmp_path / "mine.yaml"
    table.write_text(
        "title: My table\n"
        "columns:\n  - {title: Pets, benchmark: pets}\n"
        "rows:\n  - {label: k-means, method: kmeans}\n  - {label: FixMatch, method: fixmatch}\n"
    )
    arguments = ("table", table, "--seeds", 0, "--root", root, "--output", tmp_path / "tables", "--quiet")
    shown = promptcal(environment, *arguments)
    rows = (tmp_path / "tables" / "reports" / "mine.md").read_text()
    for text in (shown, rows):
        assert "FixMatch" in text
        assert "k-means" in text


def test_a_run_of_a_method_that_is_not_installed_is_rejected_with_a_plain_error(environment, run, tmp_path):
    without = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        command("report", run, settings=()), env=without, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "there is no method 'fixmatch'" in done.stderr
