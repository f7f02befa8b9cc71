"""The options of a fit are declared once: the Python functions show and check them like the request."""

import inspect
import pydoc
import re
from dataclasses import MISSING, fields

import pytest

import promptcal
from promptcal.estimator import PromptCAL
from promptcal.experiments.table_request import TableRequest
from promptcal.pipeline.request import BenchmarkRequest, EstimateRequest, FitRequest


def public(request_type):
    return {option.name: option for option in fields(request_type) if not option.metadata.get("internal")}


@pytest.mark.parametrize(
    ("function", "request_type"),
    [
        (promptcal.fit, FitRequest),
        (promptcal.benchmark, BenchmarkRequest),
        (promptcal.estimate_classes, EstimateRequest),
        (promptcal.table, TableRequest),
    ],
)
def test_signature_and_help_list_every_option(function, request_type):
    parameters = inspect.signature(function).parameters
    options = public(request_type)
    assert parameters.keys() == options.keys()
    text = pydoc.plain(pydoc.render_doc(function))
    for name, option in options.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == (inspect.Parameter.empty if option.default is MISSING else option.default)
        help_text = option.metadata.get("python") or option.metadata["help"]
        # an argument instead of an option of the command
        pattern = re.sub(r"\\-\\-(?:\\-|[a-z])+", lambda found: rf"(``\w+``|{found[0]})", re.escape(help_text))
        assert re.search(rf"\n        {name}: {pattern}\n", text + "\n"), name


def test_fit_does_not_take_what_only_a_benchmark_sets(tmp_path):
    of_benchmarks = {option.name for option in fields(FitRequest)} - public(FitRequest).keys()
    assert of_benchmarks == {"inductive", "read_test", "benchmark", "data_difference", "protocol", "command"}
    with pytest.raises(promptcal.ConfigError, match="there is no option 'benchmark'"):
        promptcal.fit(images=tmp_path, output=tmp_path / "run", benchmark="cub")


def test_what_must_be_given_comes_first():
    assert list(inspect.signature(promptcal.fit).parameters)[:4] == ["images", "labels", "n_classes", "output"]
    assert list(inspect.signature(promptcal.cluster).parameters)[:4] == ["features", "labels", "n_classes", "output"]


def test_an_unknown_option_is_rejected_by_name(tmp_path):
    for function, given in (
        (promptcal.fit, {"images": tmp_path}),
        (promptcal.benchmark, {"name": "mini"}),
        (promptcal.demo, {}),
    ):
        with pytest.raises(promptcal.ConfigError, match="there is no option 'n_clusters'"):
            function(**given, output=tmp_path / "run", n_clusters=4)
    assert not (tmp_path / "run").exists()


def test_the_estimator_has_only_options_of_the_request():
    renamed = {"random_state": "seed", "verbose": "progress"}
    own = {renamed.get(name, name) for name in inspect.signature(PromptCAL).parameters}
    assert own <= {option.name for option in fields(FitRequest)}
