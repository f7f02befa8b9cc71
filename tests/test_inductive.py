"""The inductive protocol: images held out whole to select by, test images scored without labels."""

import json
from dataclasses import asdict
from typing import get_args

import numpy as np
import pytest
import torch

from promptcal.api import benchmark, fit, results
from promptcal.config.schema import MethodName
from promptcal.data import ImageSet, embedded_set
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.errors import DataError, RunError
from promptcal.metrics import discovery_accuracy
from promptcal.models import ClassifierNetwork
from promptcal.pipeline.problem import Inductive
from promptcal.runtime.seeds import derive_seed
from promptcal.training.validation import Selector, ValidationResult

SHORT = ("warmup.epochs=1", "affinity.epochs=1", "tensorboard=false", "model.image_size=16", "clustering.n_init=2")


@pytest.fixture(scope="module")
def validation(small_set):
    """A labelled image of each of the two known classes, and four unlabelled ones."""
    labels = small_set[2]
    mask = np.zeros(len(labels), dtype=bool)
    mask[[np.flatnonzero(labels == c)[1] for c in (0, 1)]] = True
    mask[np.flatnonzero(labels < 0)[::10]] = True
    return mask


@pytest.fixture(scope="module")
def test_part():
    data = embedded_set("test")
    chosen = np.flatnonzero(data.labels < 4)[::5]
    return data.images[chosen], data.labels[chosen]


@pytest.fixture
def run_inductive(small_set, quick_settings, validation, test_part, tmp_path):
    def run(*more, output="run", images=None, labels=None, **options):
        test_images, test_truth = test_part
        return fit(
            images=small_set[0] if images is None else images,
            labels=small_set[2] if labels is None else labels,
            n_classes=4,
            output=tmp_path / output,
            inductive=Inductive(validation, ImageSet.of(test_images), [str(c) for c in test_truth]),
            overrides=[*quick_settings, *SHORT, *more],
            progress=False,
            **options,
        )

    return run


def on_the_test_part(run, test_part):
    """What the run's network makes of the test images: its own classifier, or k-means that sees no label."""
    images, truth = test_part
    features = run.embed(images, progress=False)[1]
    if isinstance(run.network, ClassifierNetwork):
        with torch.no_grad():
            clusters = run.network.classify(features).argmax(dim=1).numpy()
    else:
        settings, seed = run.config.clustering, derive_seed(run.config.seed, "kmeans")
        kmeans = SemiSupervisedKMeans(4, settings.n_init, settings.max_iter, settings.tol, random_state=seed)
        clusters = kmeans.fit(features).labels_
    return asdict(discovery_accuracy(truth, clusters, [0, 1]))


@pytest.mark.parametrize("method", get_args(MethodName))
def test_the_scores_are_of_the_test_images(method, run_inductive, test_part):
    run = run_inductive(method=method)
    found = results(run)
    assert (found["protocol"], found["method"]) == ("inductive", method)
    assert found["scores"]["selected"] == pytest.approx(on_the_test_part(run, test_part))
    assert found["scores"]["last"] == found["scores"]["selected"]  # one epoch, and no other
    assert "semi_supervised_kmeans" not in found
    assert len(run.assignments().paths) == 48  # the training images are still assigned


def test_selected_and_last_epoch_are_both_scored(run_inductive, test_part, monkeypatch):
    falling = iter([0.9, 0.1])
    monkeypatch.setattr(Selector, "look", lambda self, network, stage: ValidationResult(next(falling), 0.0, 0.0))
    options = ("warmup.epochs=2", "optim.lr=0.3")
    run = run_inductive(*options, method="promptcal-warmup")
    found = results(run)
    assert (found["warmup"]["best_epoch"], found["warmup"]["epochs"]) == (1, 2)
    assert found["scores"]["selected"] == found["warmup"]["accuracy"] == pytest.approx(on_the_test_part(run, test_part))
    last = run_inductive(*options, "selection.by=last", method="promptcal-warmup", output="last")
    assert found["scores"]["last"] == results(last)["scores"]["selected"]
    assert found["scores"]["last"] != found["scores"]["selected"]


def losses(run):
    return [json.loads(line)["loss"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_images_held_out_and_their_labels_are_not_trained_on(run_inductive, small_set, validation):
    images, _, labels = small_set
    noise = np.where(validation[:, None, None, None], np.random.default_rng(0).integers(0, 256, images.shape), images)
    swapped = np.where(validation & (labels >= 0), 1 - labels, labels)
    as_they_are = run_inductive("selection.by=last", method="promptcal-warmup", output="1")
    spoilt = run_inductive(
        "selection.by=last", method="promptcal-warmup", output="2", images=noise.astype(np.uint8), labels=swapped
    )
    assert losses(as_they_are) == losses(spoilt)
    noise[np.flatnonzero(~validation)[::2]] = 0  # some of which are drawn, whatever the draw
    assert losses(
        run_inductive("selection.by=last", method="promptcal-warmup", output="3", images=noise.astype(np.uint8))
    ) != losses(spoilt)


def test_one_protocols_run_is_not_resumed_as_the_others(run_inductive, small_set, quick_settings):
    run = run_inductive(method="kmeans")
    info = json.loads(run.directory.info_file.read_text())
    run.directory.info_file.write_text(json.dumps({**info, "status": "running"}))
    with pytest.raises(RunError, match="made with other images or labels"):
        fit(
            images=small_set[0], labels=small_set[2], n_classes=4, method="kmeans", output=run.path,
            overrides=[*quick_settings, *SHORT], resume=True, progress=False,
        )  # fmt: skip
    assert results(run_inductive(method="kmeans", resume=True))["protocol"] == "inductive"


def test_too_few_test_images_are_refused(small_set, quick_settings, validation, tmp_path):
    images, _, labels = small_set
    with pytest.raises(DataError, match="3 test images cannot be clustered into 4 classes"):
        fit(
            images=images, labels=labels, n_classes=4, output=tmp_path / "run", overrides=quick_settings,
            inductive=Inductive(validation, ImageSet.of(images[:3]), ["0", "1", "0"]), progress=False,
        )  # fmt: skip


def test_mini_inductive_needs_no_download(promptcal, tmp_path, quick_settings):
    settings = [*quick_settings, *SHORT, "data.batch_size=500", "selection.by=validation", "selection.max_images=200"]
    arguments = ["benchmark", "mini-inductive", "--root", tmp_path, "--output", tmp_path / "run", "-q", "--no-report"]
    arguments += ["--method", "promptcal-warmup"]
    code, out, err = promptcal(*arguments, *(part for s in settings for part in ("--set", s)))
    assert code == 0, err
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["protocol"] == "inductive"
    header = next(line for line in out.splitlines() if "accuracy on the test images, %" in line)
    assert [cell.strip() for cell in header.strip("┃").split("┃")][1:] == ["All", "Known", "New", "Known*", "New*"]
    shown = next(line for line in out.splitlines() if "warm-up" in line)
    parts = ("all", "known", "new", "separate_known", "separate_new")
    expected = [f"{100 * found['scores']['selected'][part]:.1f}" for part in parts]
    assert [cell.strip() for cell in shown.strip("│").split("│")][1:] == expected
    # 500 test images, 250 of them of known classes: shares are whole numbers of those
    assert found["scores"]["selected"]["known"] * 250 == pytest.approx(
        round(found["scores"]["selected"]["known"] * 250)
    )


def test_a_source_without_test_images_is_refused(tmp_path):
    (tmp_path / "cub_train.tar").touch()
    with pytest.raises(DataError, match="cub_train.tar in .* has no test images, which cub-inductive needs"):
        benchmark(name="cub-inductive", root=tmp_path, output=tmp_path / "run")
