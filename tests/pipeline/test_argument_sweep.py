"""Every argument of every public function is given values of wrong types: only errors of the package may come back."""

import decimal
import inspect
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import promptcal
from promptcal.cli.app import app
from promptcal.errors import ArgumentError, PromptCALError
from promptcal.experiments.table_request import TableRequest
from promptcal.pipeline.request import (
    BenchmarkRequest,
    ClusterRequest,
    EmbedRequest,
    EstimateRequest,
    FitRequest,
    PredictShardsRequest,
)

pytestmark = pytest.mark.filterwarnings("ignore")
FEATURES = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
MODEL = ("model.backbone=vit_tiny_patch4_32.promptcal", "model.image_size=8", "clustering.n_init=2")
KMEANS = ("clustering.n_init=2", "clustering.readout=kmeans")


class NoPath:
    def __fspath__(self):
        return 5


class NoText:
    def __repr__(self):
        raise RuntimeError

    __str__ = __repr__


def wrong_values():
    """Made anew for each call: iterators are used up."""
    return [
        *(None, True, 0, -3, 10**30, 1.5, float("nan"), float("inf"), 1j, decimal.Decimal("1.5"), np.int64(3)),
        *("", "x", "a\0b", "\ud800", "a" * 5000, b"x", np.str_("x"), memoryview(b"abc")),
        *(object(), dict, print, ValueError("x"), os, sys.stderr, NoPath(), NoText()),
        *([], [1], [None] * 8, [[1], [2, 3]] * 4, ["a"] * 8, (1, 2), {1, 2}, range(3)),
        *({}, {1: 2}, {None: None}, {"0.png": [1]}, iter(["a"]), (i for i in range(3))),
        *(np.array(5), np.arange(8), np.full((8, 3), np.nan), np.array([None] * 8), np.zeros((2, 2, 2, 2, 2))),
        *(np.zeros((0, 8, 8, 3), np.uint8), np.zeros((8, 8, 8, 3), complex), np.zeros(3, [("a", "i4")])),
        *(np.ma.masked_array(np.zeros((8, 3)), mask=True), np.array(["2020-01-01"] * 8, "datetime64[D]")),
        *(pd.NA, pd.NaT, pd.Series([1, 2]), pd.Series([pd.NA] * 8), pd.DataFrame(), pd.DataFrame({"a": [1]})),
        *(pd.DataFrame({"path": ["0.png"], "label": [[1]]}), pd.Categorical(["a", None] * 4)),
        *(torch.zeros(8), torch.zeros(8, 3, requires_grad=True), torch.zeros(8, 8, 8, 3, device="meta")),
        *(torch.eye(8).to_sparse(), torch.zeros(8, 3, dtype=torch.bfloat16)),
        *(Path("does/not/exist"), Path("/dev/null"), Image.new("RGB", (1, 1)), Image.new("I;16", (4, 4))),
    ]


def options(kind):
    return [option.name for option in fields(kind)]


def parameters(function, *without):
    return [name for name in inspect.signature(function).parameters if name not in without]


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Name -> a call with sound arguments that the given ones replace, and the names of its arguments.

    Where a sound call would take long, its output is below a file, so that it is refused after the arguments are read.
    """
    root = tmp_path_factory.mktemp("sweep")
    images = root / "images"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 12, 3), np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(images / f"{i}.png")
    (root / "file").write_text("")
    blocked = root / "file" / "run"
    quiet = {"progress": False, "report": False}
    labels = {"0.png": "cat", "1.png": "cat", "2.png": "dog"}
    sound = {"images": images, "labels": labels, "n_classes": 3, "overrides": MODEL}
    kmeans = {**sound, "method": "semi-supervised-kmeans"}
    run = promptcal.fit(**kmeans, **quiet, output=root / "run")
    model = promptcal.PromptCAL.load(run.path, verbose=False)
    y = [0, 1, *[-1] * 6]
    found = promptcal.SemiSupervisedDiscovery(3, overrides=KMEANS).fit(FEATURES, y)
    features_run = promptcal.cluster(features=FEATURES, n_classes=2, output=root / "f", overrides=KMEANS, **quiet)

    def estimator(images=images, labels=labels, **given):
        given = {
            "n_classes": 3,
            "method": "semi-supervised-kmeans",
            "overrides": MODEL,
            "verbose": False,
            "output": blocked,
            **given,
        }
        return promptcal.PromptCAL(**given).fit(images, labels)

    def feature_estimator(X=FEATURES, y=y, **given):
        return promptcal.SemiSupervisedDiscovery(**{"n_classes": 3, "overrides": KMEANS, **given}).fit(X, y)

    def with_defaults(function, **defaults):
        return lambda **given: function(**{**defaults, **given})

    estimate = {"images": images, "labels": labels, "backbone": "none", "progress": False}
    of_run = {"run": run, "progress": False}
    return {
        "fit": (with_defaults(promptcal.fit, **kmeans, **quiet, output=blocked), options(FitRequest)),
        "benchmark": (with_defaults(promptcal.benchmark, name="none", output=blocked), options(BenchmarkRequest)),
        "demo": (with_defaults(promptcal.demo, output=blocked, device="none"), ["output", "name", "seed"]),
        "cluster": (
            with_defaults(promptcal.cluster, features=FEATURES, n_classes=3, output=blocked, overrides=KMEANS, **quiet),
            options(ClusterRequest),
        ),
        "estimate_classes": (with_defaults(promptcal.estimate_classes, **estimate), options(EstimateRequest)),
        "table": (with_defaults(promptcal.table, name="none", output=blocked), options(TableRequest)),
        "predict": (with_defaults(promptcal.predict, images=images, **of_run), parameters(promptcal.predict, "output")),
        "predict_shards": (
            with_defaults(promptcal.predict_shards, source=images, output=blocked, engine="none", **of_run),
            options(PredictShardsRequest),
        ),
        "embed": (
            with_defaults(promptcal.embed, source=images, output=blocked, engine="none", **of_run),
            options(EmbedRequest),
        ),
        "predict features": (with_defaults(promptcal.predict, run=features_run, progress=False), ["images"]),
        "evaluate": (with_defaults(promptcal.evaluate, run=run, truth=labels), parameters(promptcal.evaluate)),
        "export": (
            with_defaults(promptcal.export, to="none", output=blocked, **of_run),
            parameters(promptcal.export, "copy"),
        ),
        "name": (with_defaults(promptcal.name, run=root, labels=labels), parameters(promptcal.name)),
        "make_report": (with_defaults(promptcal.make_report, run=root), parameters(promptcal.make_report)),
        "make_figure": (with_defaults(promptcal.make_figure, name="none", **of_run), parameters(promptcal.make_figure)),
        "check": (
            with_defaults(promptcal.check, images=images, progress=False),
            parameters(promptcal.check, "output", "progress"),
        ),
        "datasets": (promptcal.datasets, ["root"]),
        "Run": (with_defaults(promptcal.Run, path=run.path), ["path", "device"]),
        "Run.predict": (with_defaults(run.predict, images=images, progress=False), parameters(run.predict, "progress")),
        "Run.embed": (with_defaults(run.embed, images=images, progress=False), ["images", "skip_unreadable"]),
        "PromptCAL": (estimator, [*parameters(promptcal.PromptCAL), "images", "labels"]),
        "PromptCAL.predict": (model.predict, ["images"]),
        "PromptCAL.predict_proba": (model.predict_proba, ["images"]),
        "PromptCAL.transform": (lambda images: model.transform(images), ["images"]),
        "PromptCAL.save": (with_defaults(model.save, path=blocked), ["path"]),
        "PromptCAL.load": (with_defaults(promptcal.PromptCAL.load, path=run.path), ["path", "device", "verbose"]),
        "SemiSupervisedDiscovery": (
            feature_estimator,
            [*parameters(promptcal.SemiSupervisedDiscovery, "verbose"), "X", "y"],
        ),
        "SemiSupervisedDiscovery.predict": (found.predict, ["X"]),
        "SemiSupervisedDiscovery.predict_proba": (found.predict_proba, ["X"]),
        "SemiSupervisedDiscovery.transform": (lambda X: found.transform(X), ["X"]),
        "SemiSupervisedDiscovery.none_of_these": (found.none_of_these, ["X"]),
    }


FUNCTIONS = (
    *("fit", "benchmark", "demo", "cluster", "estimate_classes", "table", "predict", "predict features", "evaluate"),
    *("embed", "predict_shards"),
    *("export", "name", "make_report", "make_figure", "check", "datasets", "Run", "Run.predict", "Run.embed"),
    *("PromptCAL", "PromptCAL.predict", "PromptCAL.predict_proba", "PromptCAL.transform", "PromptCAL.save"),
    *("PromptCAL.load", "SemiSupervisedDiscovery", "SemiSupervisedDiscovery.predict"),
    *("SemiSupervisedDiscovery.predict_proba", "SemiSupervisedDiscovery.transform"),
    "SemiSupervisedDiscovery.none_of_these",
)


def test_every_public_function_is_swept():
    public = {name for name in promptcal.__all__ if callable(getattr(promptcal, name)) and not name.endswith("Error")}
    assert public - {*FUNCTIONS} == {"Assignments", "Interrupted"}  # results, which no user makes


def outcome(call, argument, value):
    """Whether the value was accepted or refused in a sentence, and what went wrong otherwise."""
    try:
        call(**{argument: value})
    except PromptCALError as error:
        is_sentence = "\n" not in str(error) and 15 < len(str(error)) <= 2000
        return ("refused", "") if is_sentence else ("fault", str(error)[:100])
    except Exception as error:
        return "fault", f"{type(value).__name__}: {type(error).__name__}: {error}"
    return "accepted", ""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_wrong_values_are_errors_of_the_package(function, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, arguments = calls[function]
    found = [(argument, *outcome(call, argument, value)) for argument in arguments for value in wrong_values()]
    assert [case for case in found if case[1] == "fault"] == []
    assert sum(case[1] == "refused" for case in found) > 30 * len(arguments)
    left = [path.name for path in tmp_path.iterdir()]
    assert left in ([], ["does"], ["x"], ["does", "x"], ["x", "does"])  # outputs that were named


REQUESTS = {
    "fit": FitRequest,
    "benchmark": BenchmarkRequest,
    "cluster": ClusterRequest,
    "estimate_classes": EstimateRequest,
    "embed": EmbedRequest,
    "predict_shards": PredictShardsRequest,
    "table": TableRequest,
}
CALLABLES = {
    "predict": promptcal.predict,
    "check": promptcal.check,
    "export": promptcal.export,
    "make_report": promptcal.make_report,
    "make_figure": promptcal.make_figure,
    "Run.predict": promptcal.Run.predict,
    "PromptCAL": promptcal.PromptCAL.__init__,
    "SemiSupervisedDiscovery": promptcal.SemiSupervisedDiscovery.__init__,
}
SOUND = {  # what a call needs besides, so that the number is read
    ("fit", "sample"): {},
    ("benchmark", "seed"): {"name": "mini"},
    ("benchmark", "stop_after"): {"name": "mini"},
    ("estimate_classes", "seed"): {"backbone": None},
    ("estimate_classes", "max_classes"): {"backbone": None},
    ("cluster", "sample"): {"features": Path()},
}


def is_number(annotation):
    parts = get_args(annotation)
    return any(map(is_number, parts)) if parts else annotation in (int, float)


def numeric_arguments():
    found = {
        (name, option.name) for name, kind in REQUESTS.items() for option in fields(kind) if is_number(option.type)
    }
    for name, function in CALLABLES.items():
        found |= {(name, p.name) for p in inspect.signature(function).parameters.values() if is_number(p.annotation)}
    return sorted(case for case in found if case[1] != "verbose")  # 0 or 1, and more is not more


@pytest.mark.parametrize(("function", "argument"), numeric_arguments())
def test_every_number_has_an_upper_bound(function, argument, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = {"n_classes": "n.classes", "random_state": "random_state|'seed'", "seeds": "seed"}
    for value in (10**30, 10**5000):
        given = [value] if argument == "seeds" else value
        with pytest.raises(PromptCALError, match=shown.get(argument, argument.replace("_", "[-_ ]"))):
            calls[function][0](**{**SOUND.get((function, argument), {}), argument: given})


def test_every_number_of_the_command_line_is_one_of_these():
    """Or has a largest value of its own."""
    options = []
    for command in app.registered_commands:
        for parameter in inspect.signature(command.callback).parameters.values():
            kind, *given = get_args(parameter.annotation)
            if is_number(kind) or getattr(given[0], "parser", None) is not None:
                options.append((command.name or command.callback.__name__, parameter.name, given[0].max))
    found = {(command, name) for command, name, most in options if most is None}
    assert {("fit", "sample"), ("table", "kmeans_repeats"), ("predict", "workers"), ("serve", "n_classes")} <= found
    assert {name for _, name in found} <= {name for _, name in numeric_arguments()}
    assert ("serve", "port", 65535) in options


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: promptcal.fit("photos"), "fit takes its arguments by name; write"),
        (lambda: promptcal.predict("run", "photos"), r"predict takes its arguments by name; write predict\(run=...\)"),
        (lambda: promptcal.predict(run="run"), "the option 'images' is missing"),
        (lambda: promptcal.predict(run="run", images="photos", threshold=1), "there is no option 'threshold'"),
        (lambda: promptcal.check(), "the option 'images' is missing"),
        (lambda: promptcal.demo(name="cub"), "the demo is the benchmark 'mini'"),
        (lambda: promptcal.PromptCAL.load(), "the option 'path' is missing"),
        (lambda: promptcal.PromptCAL.load("a", "cpu", True), "PromptCAL.load takes its arguments by name"),
        (lambda: promptcal.PromptCAL(random_state="x").fit(["a"]), "random_state must be a whole number or None"),
        (lambda: promptcal.PromptCAL(verbose="x").fit(["a"]), "verbose must be True or False or a whole number"),
        (lambda: promptcal.check(images=sys.stdin), "images must be given as the path of a file, not as an open file"),
    ],
)
def test_arguments_that_are_missing_unknown_or_without_a_name(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
