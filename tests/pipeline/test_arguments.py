"""Arguments of a wrong type are refused at once, by name, with an error of the package."""

import os
from pathlib import Path

import numpy as np
import pytest

import promptcal
from promptcal.errors import ArgumentError

IMAGES = np.zeros((4, 8, 8, 3), np.uint8)
LONG = "a" * 5000


class NoPath:
    """A path by its methods, but not one that can be opened."""

    def __fspath__(self):
        return 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"output": None}, "output must be a text or a path, not None"),
        ({"output": 5}, r"output must be a text or a path, not 5 \(int\)"),
        ({"output": LONG}, r"output is too long for a path \(5000 characters\)"),
        ({"output": "a\0b"}, "output must be a path without NUL"),
        ({"overrides": [1]}, r"overrides must be a list, each element a text, not \[1\]"),
        ({"overrides": np.array(5)}, "overrides must be a list"),
        ({"output": NoPath()}, "output must be a path of text"),
        ({"overrides": "seed=1"}, "overrides must be a list"),
        ({"overrides": {"seed": 1}}, "overrides must be a list"),
        ({"seed": "x"}, r"seed must be a whole number or None, not 'x' \(str\)"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"n_classes": [4]}, "n_classes must be a whole number or 'auto' or None"),
        ({"backbone": 3}, "backbone must be a text or None"),
        ({"device": 0}, "device must be a text or None"),
        ({"weights": LONG}, "weights is too long"),
        ({"start_from": 3}, "start_from must be"),
        ({"resume": "no"}, "resume must be True or False"),
        ({"stop_after": "1"}, "stop_after must be a number or None"),
        ({"config": 5}, "config must be a text or a path or a Config or None"),
        ({"config": LONG}, "config is too long"),
        ({"preset": 5}, "preset must be a text or a mapping or None"),
        ({"images": LONG}, "images is too long"),
        ({"images": [LONG]}, "an image is too long"),
        ({"labels": LONG}, "labels is too long"),
        ({"labels": "a\0b"}, "labels must be a path without NUL"),
        ({"n_clusters": 4}, "there is no option 'n_clusters'"),
    ],
)
def test_options_of_a_fit(wrong, message, tmp_path):
    options = {"images": IMAGES, "labels": [0, 1, -1, -1], "n_classes": 2, "output": tmp_path / "run", **wrong}
    with pytest.raises(ArgumentError, match=message):
        promptcal.fit(**options)
    assert not (tmp_path / "run").exists()


def test_errors_are_those_of_python_and_of_the_package_at_once():
    for kind in (TypeError, ValueError, promptcal.ConfigError, promptcal.PromptCALError):
        with pytest.raises(kind, match="the option 'output' is missing"):
            promptcal.fit(images=IMAGES)


def test_seeds_of_a_table_are_numbers(tmp_path):
    for seeds in ("x", 3, ["0"], None):
        with pytest.raises(ArgumentError, match="seeds must be a list, each element a whole number"):
            promptcal.table(name="generic", seeds=seeds, output=tmp_path)


def test_whole_numbers_of_numpy_are_numbers(tmp_path):
    with pytest.raises(promptcal.LabelError, match="3 labels do not fit"):
        promptcal.fit(images=IMAGES, labels=[0, 1, 2], n_classes=np.int64(2), seed=np.int32(1), output=tmp_path / "run")


def pipe(folder):
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: promptcal.predict(run=5, images=IMAGES), "run must be a text or a path or a Run"),
        (lambda folder: promptcal.predict(run=folder, images=IMAGES, none_below="x"), "none_below must be a number"),
        (lambda folder: promptcal.evaluate(run=None, truth={}), "run must be"),
        (lambda folder: promptcal.export(run=folder, to=3, output="x"), "to must be a text"),
        (lambda folder: promptcal.export(run=folder, to="csv", output=None), "output must be"),
        (lambda folder: promptcal.make_report(run=LONG), "run is too long"),
        (lambda folder: promptcal.make_figure(name=None, run=folder), "name must be a text"),
        (lambda folder: promptcal.check(images=IMAGES, output=folder), "is a folder; give a file"),
        (lambda folder: promptcal.check(images=IMAGES, output=folder / "a" / "b"), "does not exist; create it first"),
        (lambda folder: promptcal.check(images=IMAGES, output=pipe(folder)), "is a pipe or a device"),
        (lambda folder: promptcal.check(images=IMAGES, near_distance="4"), "near_distance must be a whole number"),
        (lambda folder: promptcal.name(run=5, labels={}), "run must be a text or a path or a Run"),
        (lambda folder: promptcal.name(run=folder, labels={}, undo="no"), "undo must be True or False"),
        (lambda folder: promptcal.datasets(root=3), "root must be"),
    ],
)
def test_arguments_of_the_other_functions(call, message, tmp_path: Path):
    with pytest.raises(ArgumentError, match=message):
        call(tmp_path)
