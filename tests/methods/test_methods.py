"""Every method through the one interface: it trains, assigns and predicts, and its scores are reported."""

import csv
import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans as ScikitKMeans

from promptcal.api import fit, predict
from promptcal.api import name as name_categories
from promptcal.cli.run_output import results_table, show_run
from promptcal.config.schema import LossConfig
from promptcal.data import ImageSet, View
from promptcal.data.store import decode
from promptcal.errors import ConfigError, PromptCALWarning
from promptcal.methods import METHODS, load_config
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.metrics import discovery_accuracy
from promptcal.pipeline import comparison
from promptcal.pipeline.clustering import final_clustering
from promptcal.pipeline.session import Session
from promptcal.report.page_data import accuracy_table, summary_record
from promptcal.report.report_inputs import ReportInputs
from promptcal.run import Run
from promptcal.runtime.device import choose_dtype
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.embedding import embed
from promptcal.training.validation import ValidationResult, Validator

NAMES = METHODS.names()
TRAINED = [name for name in NAMES if METHODS[name].trains]
ONE_STAGE = ["gcd", "simgcd", "orca", "uno", "rankstats"]


def run_of(folder, name, small_set, settings, *more):
    images, truth, labels = small_set
    return fit(
        images=images, labels=labels, truth=truth, n_classes=4, method=name, output=folder / "run",
        overrides=(*settings, *more), progress=False, report=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_set, quick_settings, common_settings):
    """A finished run of any method, made once."""
    made = {}

    def run(name):
        if name not in made:
            shorter = (*quick_settings, "warmup.epochs=1", "affinity.epochs=1")
            settings = shorter if name.startswith("promptcal") else common_settings
            made[name] = run_of(tmp_path_factory.mktemp(name), name, small_set, settings, "tensorboard=no")
        return made[name]

    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_run_assigns_and_predicts_alike(name, runs, small_set):
    images, truth, labels = small_set
    run = runs(name)
    assignments = run.assignments()
    assert np.array_equal(assignments.clusters[labels >= 0], labels[labels >= 0])  # labelled images stay in their class
    assert assignments.names == ["0", "1", "new-1", "new-2"]
    assert ((assignments.confidence > 0) & (assignments.confidence <= 1)).all()
    again = predict(run=run.path, images=images, progress=False)
    unlabelled = labels < 0
    assert np.array_equal(again.clusters[unlabelled], assignments.clusters[unlabelled])
    assert np.allclose(again.confidence[unlabelled], assignments.confidence[unlabelled], atol=2e-4)
    found = run.directory.results()
    expected = discovery_accuracy(truth[unlabelled], assignments.clusters[unlabelled], [0, 1])
    assert (found.selected.all, found.selected.known) == pytest.approx((expected.all, expected.known))
    assert (found.method, found.protocol) == (name, "transductive")
    epochs = {stage: result.epochs for stage, result in found.stages.items()}
    assert {r["stage"]: r["epochs"] for r in run.records()} == epochs == METHODS[name](run.config).epochs()


@pytest.mark.parametrize("name", TRAINED)
def test_training_changes_the_last_blocks_and_nothing_before_them(name, runs, pretrained_network):
    run = runs(name)
    fresh = pretrained_network(run.config).state_dict()
    changed = {k for k, v in run.network.state_dict().items() if not torch.equal(v, fresh[k].to(v.device))}
    first = 6 - run.config.model.train_blocks
    assert all(any(f".blocks.{i}." in key for key in changed) for i in range(first, 6))
    assert not any(f".blocks.{i}." in key or "patch_embed" in key for key in changed for i in range(first))


@pytest.mark.parametrize("name", TRAINED)
def test_the_score_of_the_last_epoch_is_of_the_last_weights(name, runs, small_set, pretrained_network):
    images, truth, labels = small_set
    run = runs(name)
    network = pretrained_network(run.config)
    Checkpoints(run.directory.checkpoints_folder).load_last_weights(network)
    network.set_compute_dtype(choose_dtype(run.config.precision, torch.device("cpu")))
    store, _, _ = decode(ImageSet.of(images), run.info.resize)
    features = embed(network, View(store, *network.vit.preprocessing), torch.arange(48))
    clustering = final_clustering(run.config, Session(run.directory, run.config, Console(quiet=True)))
    clusters = run.method.assignment(network).partition(features, labels, clustering).clusters
    accuracy = discovery_accuracy(truth[labels < 0], clusters[labels < 0], [0, 1])
    assert run.directory.results().last.all == pytest.approx(accuracy.all)


def test_selected_and_last_epoch_are_both_shown(small_set, tmp_path, common_settings, monkeypatch):
    scores = iter([0.9, 0.1])
    monkeypatch.setattr(Validator, "validate", lambda *arguments: ValidationResult(next(scores), 0.0, 0.0))
    found = run_of(tmp_path, "gcd", small_set, common_settings, "optim.lr=0.3").directory.results()
    assert found.stages["gcd"].best_epoch == 1
    assert found.stages["gcd"].accuracy == found.selected != found.last
    assert list(results_table(found).columns[0].cells)[-2:] == ["GCD, last epoch", "GCD, epoch 1 of 2"]


def csv_accuracy(run, truth):
    """The accuracies of assignments.csv by their definition, in %: images in the right category after the best
    one-to-one matching of clusters and classes; of all images, of those of known classes, and of the others."""
    with run.directory.assignments_file.open(newline="", encoding="utf-8") as file:
        rows = [
            (int(row["cluster"]), t)
            for row, t in zip(csv.DictReader(file), truth, strict=True)
            if row["labelled"] == "no"
        ]
    counts = np.zeros((len(run.names), 4))
    for cluster, true_class in rows:
        counts[cluster, true_class] += 1
    class_of = dict(zip(*linear_sum_assignment(-counts), strict=True))
    known = {int(name) for name in run.info.known_classes}
    hits = np.array([class_of.get(cluster) == t for cluster, t in rows])
    is_known = np.array([t in known for _, t in rows])
    return [100 * part.mean() for part in (hits, hits[is_known], hits[~is_known])]


@pytest.fixture
def run_to_score(runs, small_set, quick_settings, tmp_path, monkeypatch):
    """The run of a method, or one whose result came about in another way."""

    def run(kind):
        if kind in NAMES:
            return runs(kind)
        if kind == "no epochs":
            return run_of(tmp_path, "promptcal", small_set, quick_settings, "warmup.epochs=0", "affinity.epochs=0")
        settings = [setting for setting in quick_settings if "keep" not in setting and "readout" not in setting]
        settings += ["model.image_size=8", "warmup.epochs=1", "affinity.epochs=1"]
        if kind != "first result with the read-out":
            return run_of(tmp_path, "promptcal", small_set, settings, "selection.keep=trained")
        monkeypatch.setattr(comparison, "is_preferred", lambda trained, first, was_trained: False)
        return run_of(tmp_path, "promptcal", small_set, settings)

    return run


READ_OUT = ["trained read-out", "first result with the read-out"]


@pytest.mark.parametrize("name", [*NAMES, "no epochs", *READ_OUT])
def test_terminal_and_report_show_the_accuracy_of_the_assignments(name, run_to_score, small_set):
    run = run_to_score(name)
    assert (run.config.clustering.readout == "head") == (name in READ_OUT)
    assert run.info.is_frozen == name.startswith("first result")
    accuracy, *parts = csv_accuracy(run, small_set[1])
    inputs, console = ReportInputs.load(run, Console(quiet=True)), Console(record=True, file=io.StringIO(), width=200)
    summary = summary_record(inputs.analysis, run, inputs.results)
    table = accuracy_table(inputs.analysis, type(run.method), inputs.results)
    assert summary["accuracy"]["all"] == pytest.approx(accuracy / 100)
    assert [row["isResult"] for row in table] == [False] * (len(table) - 1) + [True]
    assert table[-1]["all"] == pytest.approx(accuracy / 100)
    assert table[-1]["step"].startswith(run.method.title)
    show_run(run, console, has_report=False)
    shown = console.export_text()
    assert f"Accuracy of assignments.csv: {accuracy:.1f} %" in shown
    assert "The last row is the result. Accuracy: share of images in the right category, clusters and classes" in shown
    terminal = results_table(inputs.results)
    assert list(terminal.columns[0].cells)[-1] == table[-1]["step"]
    last_row = [list(column.cells)[-1] for column in terminal.columns[1:4]]
    assert last_row == [f"{part:.1f}" for part in (accuracy, *parts)]


@pytest.mark.parametrize("kind", ["kmeans", "trained read-out"])
def test_the_report_of_a_named_run_shows_the_accuracy_of_its_assignments(kind, run_to_score, small_set, tmp_path):
    """Images that move with their label, and classes that were new before, change the accuracy."""
    made = run_to_score(kind)
    run = Run(made.path if kind not in NAMES else shutil.copytree(made.path, tmp_path / "copy"))
    found, truth = run.assignments(), small_set[1]
    members = np.flatnonzero(found.clusters == max((2, 3), key=lambda c: (found.clusters == c).sum()))
    true_class = int(np.bincount(truth[members], minlength=4)[2:].argmax()) + 2
    labels = {found.paths[i]: str(true_class) for i in members[: len(members) // 2 + 1]}
    before, *_ = csv_accuracy(run, truth)
    name_categories(run=run, labels=labels)
    named = Run(run.path)
    accuracy, *_ = csv_accuracy(named, truth)
    assert accuracy != before
    assert str(true_class) in named.info.known_classes
    inputs = ReportInputs.load(named, Console(quiet=True))
    table = accuracy_table(inputs.analysis, type(named.method), inputs.results)
    shown = summary_record(inputs.analysis, named, inputs.results)["accuracy"]["all"]
    assert shown == table[-1]["all"] == pytest.approx(accuracy / 100)


def test_kmeans_is_plain_k_means_on_the_frozen_features(runs, small_set):
    run = runs("kmeans")
    features = np.load(run.directory.embeddings_file)
    best = ScikitKMeans(4, n_init=50, random_state=0).fit(features)
    ours = ((features - run.centroids.numpy()[run.predict(small_set[0], progress=False).clusters]) ** 2).sum()
    assert ours <= best.inertia_ * 1.02
    found = run.directory.results()
    assert found.selected == found.last
    assert found.selected.model_dump() == pytest.approx(found.baselines["kmeans"].model_dump())


def test_warmup_only_is_the_first_stage_of_promptcal(runs):
    alone, both = runs("promptcal-warmup"), runs("promptcal")
    first = [r["loss"] for r in both.records() if r["stage"] == "warmup"]
    assert [r["loss"] for r in alone.records()] == first
    accuracies = [run.directory.results().stages["warmup"].accuracy for run in (alone, both)]
    assert accuracies[0] == accuracies[1]


def test_gcd_is_the_warm_up_without_prompts(stage_of, batch_of):
    stage, batch = stage_of("gcd"), batch_of([0, -1, 1, 0])
    assert stage.network.tokens == ("cls",)
    warmup = WarmupStage("gcd", stage.network, LossConfig())
    assert stage.step(batch, 0.0).loss.item() == warmup.step(batch, 0.0).loss.item()


@pytest.mark.parametrize("where", ["values", "overrides", "file"])
def test_the_settings_of_a_method_apply_wherever_it_is_named(where, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("method: gcd\nn_classes: 4\n")
    given = {
        "values": {"values": {"n_classes": 4, "method": "gcd"}},
        "overrides": {"values": {"n_classes": 4}, "overrides": ["method=gcd"]},
        "file": {"file": file},
    }[where]
    assert load_config(**given).model.prompts == 0
    more = {**given, "overrides": [*given.get("overrides", ()), "model.prompts=3"]}
    assert load_config(**more).model.prompts == 3
    assert load_config(**given, preset="quick").optim.lr == 0.03  # a preset's values stay where the method has none


def test_a_prompted_kmeans_is_rejected():
    with pytest.raises(ConfigError, match="model.prompts must be 0"):
        load_config(values={"n_classes": 4, "method": "kmeans"}, overrides=["model.prompts=2"])


def test_a_whole_config_takes_another_methods_values_with_its_name(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    config = load_config(values={"n_classes": 4}, overrides=quick_settings)
    assert config.model.prompts == 5
    run = fit(
        images=images,
        labels=labels,
        config=config,
        method="kmeans",
        output=tmp_path / "run",
        progress=False,
        report=False,
    )
    assert (run.config.method, run.config.model.prompts) == ("kmeans", 0)
    assert run.config.clustering == config.clustering


@pytest.mark.parametrize("name", ["simgcd", "orca", "uno", "rankstats"])
def test_no_new_category_is_no_error(name, stage_of, batch_of):
    stage = stage_of(name, n_classes=2)
    stage.step(batch_of([0, 1, -1, -1]), 0.0).loss.backward()
    stage.after_update()
    assert stage.network.classify(torch.randn(3, 16)).shape == (3, 2)
    assert all(torch.isfinite(p.grad).all() for p in stage.network.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ONE_STAGE)
def test_a_stage_has_the_name_it_is_asked_for(name, stage_of):
    """A subclass with another name then has checkpoints of that name."""
    assert stage_of(name, stage="another").name == "another"


@pytest.mark.parametrize("labels", [[-1, -1, -1, -1], [0, 1, 0, 1]])
@pytest.mark.parametrize("name", ONE_STAGE)
def test_a_batch_of_one_kind_of_image_gives_a_finite_gradient(name, labels, stage_of, batch_of):
    stage = stage_of(name)
    stage.step(batch_of(labels), 0.0).loss.backward()
    gradients = [p.grad for p in stage.network.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", ONE_STAGE)
def test_steps_down_the_gradient_lower_the_loss(name, stage_of, batch_of):
    still = ("orca.margin_weight=0",) if name == "orca" else ()  # otherwise the loss changes with the uncertainty
    stage, batch = stage_of(name, *still), batch_of([0, -1, 1, 0, -1, -1, 1, -1])
    optimiser = torch.optim.SGD(stage.network.trained_parameters().values(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = stage.step(batch._replace(generator=torch.Generator().manual_seed(0)), 0.0).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        stage.after_update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


def test_a_class_whose_only_image_is_unreadable_has_no_output(tmp_path, small_set, common_settings):
    images = small_set[0]
    for i in range(24):
        Image.fromarray(images[i]).save(tmp_path / f"{i:02d}.png")
    (tmp_path / "99.png").write_bytes(b"no image")
    given = {f"{i:02d}.png": "cat" for i in range(0, 24, 2)} | {"99.png": "ant"}
    settings = (*common_settings, "optim.epochs=1", "tensorboard=no")
    with pytest.warns(PromptCALWarning, match="1 unreadable"):
        run = fit(
            images=tmp_path, labels=given, n_classes=3, method="uno", output=tmp_path.parent / "uno-run",
            overrides=settings, skip_unreadable=True, progress=False,
            report=False,
        )  # fmt: skip
    assert run.names == ["cat", "new-1", "new-2"]
    assert run.network.known.prototypes.shape[0] == 1
    assert len(predict(run=run, images=images, progress=False)) == 48


def test_a_methods_values_on_top_of_a_preset():
    assert load_config(values={"n_classes": 4, "method": "simgcd"}).simgcd.entropy_weight == 2
    quick = load_config(preset="quick", values={"n_classes": 4, "method": "simgcd"})
    assert (quick.simgcd.entropy_weight, quick.model.prompts, quick.optim.lr) == (2, 0, 0.01)
    given = load_config(
        preset="quick", values={"n_classes": 4, "method": "simgcd"}, overrides=["simgcd.entropy_weight=3"]
    )
    assert given.simgcd.entropy_weight == 3


@pytest.mark.parametrize("name", ONE_STAGE)
def test_a_step_in_bf16_is_nearly_that_in_fp32(name, stage_of, batch_of):
    batch = batch_of([0, -1, 1, 0, -1, -1, 1, -1])
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        stage = stage_of(name)
        stage.network.vit.set_compute_dtype(dtype)
        result = stage.step(batch._replace(generator=torch.Generator().manual_seed(0)), 0.0)
        result.loss.backward()
        losses.append(result.loss.item())
        assert result.loss.dtype == torch.float32
    assert losses[1] == pytest.approx(losses[0], abs=0.05)
    assert losses[1] != losses[0]
