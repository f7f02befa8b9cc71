"""The published protocol: its settings, its selection on test images, and the conditions that a run does not meet."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from promptcal.api import benchmark
from promptcal.cli.run_output import show_run
from promptcal.data.benchmarks import BENCHMARKS, get_benchmark
from promptcal.data.benchmarks.benchmark_data import load_test_images
from promptcal.errors import ConfigError, DataError, PromptCALWarning
from promptcal.methods import METHODS, load_config
from promptcal.pipeline.published import NO_DISTILLATION, unmet_conditions
from promptcal.run.epoch_records import read_records

SMALL = ("model.image_size=8", "data.batch_size=128", "clustering.n_init=1")


def published(benchmark_name, method, *overrides):
    entry = get_benchmark(benchmark_name)
    values = {"n_classes": entry.n_classes, "method": method, "protocol": "published"}
    config = load_config(preset=entry.preset, values=values, overrides=overrides)
    return config, unmet_conditions(config, entry.preset)


@pytest.mark.parametrize("method", METHODS.names())
def test_all_labels_are_trained_on_and_an_epoch_is_kept_as_published(method):
    config, unmet = published("cub", method)
    expected = "oracle" if method.startswith("promptcal") else "last"
    assert (config.protocol, config.selection.by) == ("published", expected)
    assert unmet == ([NO_DISTILLATION] if method.startswith("promptcal") else [])


def test_each_condition_that_is_not_met_is_named():
    assert published("cub", "promptcal", "data.generic_images=photos")[1] == []
    assert published("cub", "gcd", "seed=3", "device=cpu", "precision=fp32")[1] == []
    assert published("cub", "gcd", "model.weights=other.pth")[1] == ["the weights are from other.pth"]
    assert published("cub", "gcd", "n_classes=150")[1] == ["n_classes is 150, not 200"]
    assert published("cub", "gcd", "optim.epochs=2", "selection.by=validation")[1] == [
        "optim.epochs is 2, not 200",
        "selection.by is validation, not last",
    ]
    assert published("mini", "gcd")[1] == [
        "model.backbone is vit_tiny_patch4_32.promptcal, not vit_base_patch16_224.dino"
    ]
    default = load_config(preset="cub", values={"method": "gcd"})
    other_protocol = "the protocol is not the published one (--protocol published)"
    assert unmet_conditions(default, "cub") == [other_protocol]
    other = load_config(preset="cub", values={"method": "gcd"}, overrides=["model.weights=other.pth", "n_classes=150"])
    assert unmet_conditions(other, "cub") == [
        other_protocol, "n_classes is 150, not 200", "the weights are from other.pth"
    ]  # fmt: skip
    default = load_config(preset="cub")
    assert unmet_conditions(default, "cub") == [other_protocol, NO_DISTILLATION]


def test_a_file_of_weights_is_published_only_if_the_row_of_the_table_names_it():
    config, unmet = published("cub", "gcd", "model.weights=ibot.pth")
    assert unmet != []
    assert unmet_conditions(config, "cub", ("model.weights=ibot.pth",)) == []
    assert unmet_conditions(config, "cub", ("model.weights=dino.pth",)) == ["the weights are from ibot.pth"]


def test_a_preset_without_a_number_of_classes_leaves_it_open():
    config = load_config(
        preset={"optim": {"epochs": 3}}, values={"method": "gcd", "n_classes": 7, "protocol": "published"}
    )
    assert [text for text in unmet_conditions(config, {"optim": {"epochs": 3}}) if "n_classes" in text] == []


def test_a_saved_configuration_cannot_get_another_protocol():
    saved = load_config(preset="cub", values={"method": "gcd"}).model_dump()
    with pytest.raises(ConfigError, match="protocol=default cannot be changed to protocol=published"):
        load_config(values=saved, overrides=["protocol=published"])


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize(("name", "few_images"), [("mini", 8), ("mini-inductive", 20)], indirect=["few_images"])
def test_promptcal_selects_an_epoch_by_the_true_classes_of_images_it_does_not_score(name, tmp_path, quick_settings):
    run = benchmark(
        name=name,
        protocol="published",
        output=tmp_path / "run",
        overrides=(*quick_settings, *SMALL, "selection.n_init=1", "warmup.epochs=2", "affinity.epochs=1"),
        progress=False,
        report=False,
    )
    results = run.directory.results()
    assert NO_DISTILLATION in results.unmet_conditions
    console = Console(file=io.StringIO(), width=200)
    show_run(run, console, has_report=False)
    assert f"Not as published: {NO_DISTILLATION}.\n" in console.file.getvalue()
    scores = [record["validation/known"] for record in read_records(run.directory.metrics_file)]
    assert len(scores) == 3
    assert results.stages["warmup"].score == max(scores[:2])
    held_out = run.directory.held_out().paths if name == "mini" else []
    assert held_out == []  # every label is trained on


@pytest.mark.usefixtures("few_images")
def test_too_few_validation_images_are_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="cannot cluster 0 validation images .* add --set selection.by=last"):
        benchmark(name="mini-inductive", protocol="published", output=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("few_images")
def test_the_default_protocol_states_no_conditions(tmp_path):
    run = benchmark(
        name="mini", method="kmeans", output=tmp_path / "run", overrides=SMALL, progress=False, report=False
    )
    assert run.directory.results().unmet_conditions is None


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("name", ["mini", "mini-dev"])
def test_a_run_on_images_in_another_order_says_so(name, tmp_path, monkeypatch):
    spec = BENCHMARKS["mini"]
    layouts = tuple(replace(layout, in_published_order=False) for layout in spec.layouts)
    monkeypatch.setitem(BENCHMARKS._registered, "mini", replace(spec, layouts=layouts))
    reason = "cifar10_mini.npz has the images in a different order than the original, so different images are labelled"
    with pytest.warns(PromptCALWarning, match=reason):
        run = benchmark(
            name=name,
            method="kmeans",
            protocol="published",
            output=tmp_path / "run",
            overrides=SMALL,
            progress=False,
            report=False,
        )
    assert run.info.data_difference == reason
    assert reason in run.directory.results().unmet_conditions


def test_test_images_are_those_of_the_inductive_benchmark():
    images, truth = load_test_images("mini")
    assert len(images) == len(truth) > 0
    assert load_test_images("mini-inductive")[1] == truth
