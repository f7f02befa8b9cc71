"""Every method through the one interface: it trains, assigns, predicts, and says how it fared."""

import json
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.cluster import KMeans as ScikitKMeans
from timm.models.vision_transformer import VisionTransformer

from promptcal.api import fit, predict, results
from promptcal.cli.results_output import results_table
from promptcal.config.schema import LossConfig, MethodName, load_config, method_preset
from promptcal.data import ImageSet, View
from promptcal.data.store import decode
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.discovery.partition import Partition
from promptcal.errors import ConfigError, PromptCALWarning
from promptcal.methods import METHODS, StageContext, method_of
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.metrics import discovery_accuracy
from promptcal.models import ClassifierNetwork, PromptedViT
from promptcal.run.inference import build_network
from promptcal.runtime.seeds import derive_seed
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.embedding import embed
from promptcal.training.validation import Selector, ValidationResult

NAMES = get_args(MethodName)
TRAINED = [name for name in NAMES if name != "kmeans"]


def run_of(folder, name, small_set, quick_settings, *more, **options):
    images, truth, labels = small_set
    return fit(
        images=images, labels=labels, truth=truth, n_classes=4, method=name, output=folder / "run",
        overrides=(*quick_settings, *more), progress=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_set, quick_settings):
    """A finished run of any method, made once."""
    made = {}

    def run(name):
        if name not in made:
            shorter = ("warmup.epochs=1", "affinity.epochs=1", "tensorboard=no")
            made[name] = run_of(tmp_path_factory.mktemp(name), name, small_set, quick_settings, *shorter)
        return made[name]

    return run


def records(run):
    file = run.path / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_every_name_has_a_method_and_a_preset_of_its_own():
    assert set(METHODS) == set(NAMES)
    for name in NAMES:
        config = load_config(values={"n_classes": 4, "method": name})
        assert config.method == name
        assert config.model.prompts == (5 if name.startswith("promptcal") else 0)
        assert isinstance(method_preset(name), dict)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_assigns_and_predicts_alike(name, runs, small_set):
    images, truth, labels = small_set
    run = runs(name)
    assignments = run.assignments()
    assert np.array_equal(assignments.clusters[labels >= 0], labels[labels >= 0])  # a labelled image keeps its class
    assert assignments.names == ["0", "1", "new-1", "new-2"]
    assert ((assignments.confidence > 0) & (assignments.confidence <= 1)).all()
    again = predict(run=run.path, images=images, progress=False)
    unlabelled = labels < 0
    assert np.array_equal(again.clusters[unlabelled], assignments.clusters[unlabelled])
    assert np.allclose(again.confidence[unlabelled], assignments.confidence[unlabelled], atol=2e-4)
    found = results(run)
    expected = discovery_accuracy(truth[unlabelled], assignments.clusters[unlabelled], [0, 1])
    assert found["scores"]["selected"]["all"] == pytest.approx(expected.all)
    assert found["scores"]["selected"]["known"] == pytest.approx(expected.known)
    assert (found["method"], found["protocol"]) == (name, "transductive")
    steps = {r["stage"]: r["epochs"] for r in records(run)}
    assert sum(steps.values()) == {"kmeans": 0, "promptcal-warmup": 1}.get(name, 2)


@pytest.mark.parametrize("name", TRAINED)
def test_training_moves_the_last_block_and_nothing_before_it(name, runs):
    run = runs(name)
    fresh = build_network(run.config, 2, pretrained=True).state_dict()
    moved = {k for k, v in run.network.state_dict().items() if not torch.equal(v, fresh[k].to(v.device))}
    assert any(".blocks.5." in key for key in moved)
    assert not any(f".blocks.{i}." in key or "patch_embed" in key for key in moved for i in range(5))


@pytest.mark.parametrize("name", NAMES)
def test_the_last_epochs_score_is_that_of_the_weights_training_ended_with(name, runs, small_set):
    images, truth, labels = small_set
    run = runs(name)
    scores = results(run)["scores"]
    if name == "kmeans":
        assert scores["last"] == scores["selected"]
        return
    network = build_network(run.config, 2, pretrained=True)
    Checkpoints(run.directory.checkpoints_folder).load_last_weights(network)
    store, _, _ = decode(ImageSet.of(images), run.info["resize"])
    features = embed(network, View(store, *network.vit.preprocessing), torch.arange(48))
    if isinstance(network, ClassifierNetwork):
        clusters = Partition.by_classifier(features, network).clusters
    else:
        seed = derive_seed(run.config.seed, "kmeans")
        clusters = SemiSupervisedKMeans(4, n_init=5, random_state=seed).fit_predict(features, labels)
    accuracy = discovery_accuracy(truth[labels < 0], clusters[labels < 0], [0, 1])
    assert scores["last"]["all"] == pytest.approx(accuracy.all)


def test_selected_and_last_epoch_are_both_shown(small_set, tmp_path, quick_settings, monkeypatch):
    looks = iter([0.9, 0.1])
    monkeypatch.setattr(Selector, "look", lambda *arguments: ValidationResult(next(looks), 0.0, 0.0))
    run = run_of(tmp_path, "gcd", small_set, quick_settings, "gcd.epochs=2", "optim.lr=0.3")
    found = results(run)
    assert found["gcd"]["best_epoch"] == 1
    assert found["gcd"]["accuracy"] == found["scores"]["selected"]
    assert found["scores"]["last"] != found["scores"]["selected"]
    labels = list(results_table(found).columns[0].cells)
    assert labels[-2:] == ["GCD, epoch 1 of 2", "GCD, last epoch"]


def test_kmeans_is_plain_k_means_on_the_frozen_features(runs, small_set):
    run = runs("kmeans")
    features = np.load(run.directory.embeddings_file)
    best = ScikitKMeans(4, n_init=50, random_state=0).fit(features)
    ours = ((features - run.centres.numpy()[run.predict(small_set[0], progress=False).clusters]) ** 2).sum()
    assert ours <= best.inertia_ * 1.02
    assert results(run)["scores"]["selected"] == results(run)["kmeans"]["accuracy"]


def test_warmup_only_is_the_first_stage_of_promptcal(runs):
    alone, both = runs("promptcal-warmup"), runs("promptcal")
    first = [r for r in records(both) if r["stage"] == "warmup"]
    assert [r["loss"] for r in records(alone)] == [r["loss"] for r in first]
    assert results(alone)["warmup"]["accuracy"] == results(both)["warmup"]["accuracy"]


def test_gcd_is_the_warm_up_without_prompts(stage_of, batch_of):
    stage, batch = stage_of("gcd"), batch_of([0, -1, 1, 0])
    assert stage.network.tokens == ("cls",)
    warmup = WarmupStage(stage.network, LossConfig())
    assert stage.step(batch, 0.0).loss.item() == warmup.step(batch, 0.0).loss.item()


def test_own_epochs_win_over_promptcals():
    config = load_config(values={"n_classes": 4, "method": "gcd"})
    assert method_of(config).epochs() == {"gcd": 270}
    config = load_config(values={"n_classes": 4, "method": "gcd", "gcd": {"epochs": 7}})
    assert method_of(config).epochs() == {"gcd": 7}


@pytest.mark.parametrize("where", ["values", "overrides", "file"])
def test_the_methods_preset_lies_under_whatever_names_it(where, tmp_path):
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
    assert load_config(**given, preset="quick").optim.lr == 0.03  # the preset's values stay where the method has none


def test_an_unknown_method_and_a_prompted_kmeans_are_refused():
    with pytest.raises(ConfigError, match="the setting 'method' is wrong"):
        load_config(values={"n_classes": 4, "method": "magic"})
    with pytest.raises(ConfigError, match="model.prompts must be 0"):
        load_config(values={"n_classes": 4, "method": "kmeans"}, overrides=["model.prompts=2"])


def test_a_whole_config_takes_another_methods_values_with_its_name(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    config = load_config(values={"n_classes": 4}, overrides=quick_settings)
    assert config.model.prompts == 5
    run = fit(images=images, labels=labels, config=config, method="kmeans", output=tmp_path / "run", progress=False)
    assert (run.config.method, run.config.model.prompts) == ("kmeans", 0)
    assert run.config.clustering == config.clustering


@pytest.mark.parametrize("name", ["simgcd", "orca", "uno", "rankstats"])
def test_nothing_new_to_discover_is_no_error(name, batch_of):
    config = load_config(
        values={"n_classes": 2, "method": name}, overrides=["model.head_hidden=8", "model.head_bottleneck=4"]
    )
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=0)
    network = method_of(config).network(PromptedViT(vit, prompts=0), 2)
    stage = method_of(config).stage(name, network, StageContext(None, 0, lambda: None))
    stage.step(batch_of([0, 1, -1, -1]), 0.0).loss.backward()
    stage.after_update()
    assert network.classify(torch.randn(3, 16)).shape == (3, 2)
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize("labels", [[-1, -1, -1, -1], [0, 1, 0, 1]])
@pytest.mark.parametrize("name", ["gcd", "simgcd", "orca", "uno", "rankstats"])
def test_a_batch_of_one_kind_of_image_gives_a_finite_gradient(name, labels, stage_of, batch_of):
    stage = stage_of(name)
    stage.step(batch_of(labels), 0.0).loss.backward()
    gradients = [p.grad for p in stage.network.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", ["gcd", "simgcd", "orca", "uno", "rankstats"])
def test_steps_down_the_gradient_lower_the_loss(name, stage_of, batch_of):
    still = ("orca.margin_weight=0",) if name == "orca" else ()  # or its loss would move with its own certainty
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


def test_a_class_lost_with_its_unreadable_image_leaves_no_column(tmp_path, small_set, quick_settings):
    images = small_set[0]
    for i in range(24):
        Image.fromarray(images[i]).save(tmp_path / f"{i:02d}.png")
    (tmp_path / "99.png").write_bytes(b"no image")
    given = {f"{i:02d}.png": "cat" for i in range(0, 24, 2)} | {"99.png": "ant"}
    settings = (*quick_settings, "uno.epochs=1", "tensorboard=no")
    with pytest.warns(PromptCALWarning, match="1 unreadable"):
        run = fit(
            images=tmp_path, labels=given, n_classes=3, method="uno", output=tmp_path.parent / "uno-run",
            overrides=settings, skip_unreadable=True, progress=False,
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


@pytest.mark.parametrize("name", ["gcd", "simgcd", "orca", "uno", "rankstats"])
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
