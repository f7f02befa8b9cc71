"""The example packages, installed as a user would: a method and a benchmark that the package does not know."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptcal import api
from promptcal.data import embedded_set
from promptcal.data.benchmarks import BENCHMARKS, benchmark_names
from promptcal.errors import ConfigError, Interrupted
from promptcal.methods import METHODS, load_config
from promptcal.run.directory import RunDirectory
from promptcal.runtime import plugins

EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = (
    "model.backbone=vit_tiny_patch4_32.promptcal",
    "model.image_size=8",
    "data.batch_size=16",
    "optim.epochs=3",
    "clustering.n_init=2",
    "selection.by=last",
    "tensorboard=false",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which both packages are installed; this process can import them as well."""
    target, sources = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("sources")
    for name in ("own_method", "own_benchmark"):
        package = sources / name
        package.mkdir()
        for file in (EXAMPLES / name).glob("*.*"):
            (package / file.name).write_text(file.read_text())  # a build writes into its folder
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*install, "--target", target, package], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        for registry in (METHODS, BENCHMARKS):  # what is loaded from the packages is forgotten at the end
            patch.setattr(registry, "_registered", dict(registry._registered))
        plugins.entry_points_of.cache_clear()
        yield target
    plugins.entry_points_of.cache_clear()


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


def benchmark(root, output, **options):
    settings = {"method": "fixmatch", "overrides": SETTINGS, "progress": False}
    return api.benchmark(name="pets", root=root, output=output, **settings, **options)


def start(installed, *arguments):
    """The command line in a process of its own."""
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "promptcal", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def run(installed, root, tmp_path_factory):
    return benchmark(root, tmp_path_factory.mktemp("runs") / "run")


def test_the_method_is_a_package_of_under_60_lines():
    lines = [line for file in (EXAMPLES / "own_method").glob("*.*") for line in file.read_text().splitlines()]
    assert len(lines) < 60


def test_method_and_benchmark_are_listed(installed):
    assert METHODS.names()[-1] == "fixmatch"
    assert {"pets", "pets-inductive"} <= set(benchmark_names())


def test_fit_and_report(run):
    assert len(run.assignments()) == 48
    assert run.config.fixmatch.threshold == 0.7
    assert not hasattr(run.config, "affinity")  # the preset's sections of other methods are dropped
    api.make_report(run=run, progress=False)
    assert "FixMatch" in (run.path / "report.html").read_text()


def test_an_interrupted_fit_is_resumed_bit_equal(interrupted_at, root, run, tmp_path):
    output = tmp_path / "stopped"
    done = interrupted_at(4)
    with pytest.raises(Interrupted):
        benchmark(root, output)
    assert RunDirectory(output).info().status == "training"
    benchmark(root, output, resume=True)
    assert len(done) > 4
    for file in ("assignments.csv", "embeddings.npy"):
        assert (output / file).read_bytes() == (run.path / file).read_bytes()


def test_predict_in_a_new_process_agrees_with_the_fit(installed, root, run):
    with start(installed, "predict", run.path, root / "pets", "--accept-all", "--quiet") as process:
        rows = [row.split(",") for row in process.communicate()[0].splitlines()]
    predicted = {row[0]: row[2] for row in rows[1:]}
    found = run.assignments()
    unlabelled = [i for i, labelled in enumerate(found.labelled) if not labelled]
    assert [predicted[found.paths[i]] for i in unlabelled] == [found.categories[i] for i in unlabelled]


def test_a_table_of_ones_own_has_a_row_of_the_method(installed, root, tmp_path):
    table = tmp_path / "mine.yaml"
    table.write_text(
        "title: My table\n"
        "columns:\n  - {title: Pets, benchmark: pets}\n"
        "rows:\n  - {label: k-means, method: kmeans}\n  - {label: FixMatch, method: fixmatch}\n"
    )
    options = {"output": tmp_path / "tables", "overrides": SETTINGS, "progress": False}
    made = api.table(name=str(table), seeds=[0], root=root, **options)
    assert {state.name for cell in made.summary.cells for state in cell.states} == {"finished"}
    assert "| FixMatch |" in made.markdown.read_text()


def test_a_method_that_is_not_installed_is_a_plain_error():
    with pytest.raises(ConfigError, match="there is no method 'gone'; choose one of promptcal, "):
        load_config(values={"method": "gone", "n_classes": 2})
