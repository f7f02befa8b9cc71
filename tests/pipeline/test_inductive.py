"""The inductive protocol: images held out entirely to select an epoch, test images scored without labels."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from promptcal.api import benchmark, fit
from promptcal.data import ImageSet, embedded_set
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.errors import DataError, RunError
from promptcal.methods import METHODS
from promptcal.metrics import discovery_accuracy
from promptcal.models import ClassifierNetwork
from promptcal.pipeline.fit import run_fit
from promptcal.pipeline.problem import Inductive
from promptcal.pipeline.request import FitRequest
from promptcal.run.directory import RunDirectory
from promptcal.runtime.seeds import derive_seed
from promptcal.training.validation import ValidationResult, Validator

SHORT = ("optim.epochs=1", "tensorboard=false", "clustering.n_init=2")
SHORT_STAGES = ("warmup.epochs=1", "affinity.epochs=1")
PARTS = ("all", "known", "new", "separate_known", "separate_new", "nmi", "ari")


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
def run_inductive(small_set, quick_settings, common_settings, validation, test_part, tmp_path):
    def run(method, *more, output="run", images=None, labels=None, **options):
        test_images, test_truth = test_part
        settings = (*quick_settings, *SHORT_STAGES) if method.startswith("promptcal") else common_settings
        request = FitRequest(
            images=small_set[0] if images is None else images,
            labels=small_set[2] if labels is None else labels,
            n_classes=4,
            method=method,
            output=tmp_path / output,
            inductive=Inductive(validation, ImageSet.of(test_images), [str(c) for c in test_truth]),
            overrides=(*settings, *SHORT, *more),
            progress=False,
            **options,
            report=False,
        )
        return run_fit(request)

    return run


def on_the_test_part(run, test_part):
    """The accuracy of the run's network on the test images, by its classifier or by k-means without labels."""
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


@pytest.mark.parametrize("method", METHODS.names())
def test_the_scores_are_of_the_test_images(method, run_inductive, test_part):
    run = run_inductive(method)
    found = run.directory.results()
    assert (found.protocol, found.method) == ("inductive", method)
    assert found.selected.model_dump() == pytest.approx(on_the_test_part(run, test_part))
    assert found.last == found.selected  # there is only one epoch
    assert list(found.baselines) == ["kmeans"]
    assert len(run.assignments().paths) == 48  # the training images are still assigned


def test_selected_and_last_epoch_are_both_scored(run_inductive, test_part, monkeypatch):
    falling = iter([0.9, 0.1])
    monkeypatch.setattr(Validator, "validate", lambda *given: ValidationResult(next(falling), 0.0, 0.0))
    options = ("promptcal-warmup", "warmup.epochs=2", "optim.lr=0.3")
    run = run_inductive(*options)
    found = run.directory.results()
    stage = found.stages["warmup"]
    assert (stage.best_epoch, stage.epochs) == (1, 2)
    assert found.selected == stage.accuracy
    assert found.selected.model_dump() == pytest.approx(on_the_test_part(run, test_part))
    last = run_inductive(*options, "selection.by=last", output="last")
    assert last.directory.results().selected == found.last != found.selected


def test_test_images_are_clustered_with_each_seed_of_kmeans(run_inductive, test_part):
    found = run_inductive("kmeans", "clustering.repeats=2").directory.results()
    assert [len(scores.repeats) for scores in (found.selected, found.baselines["kmeans"])] == [2, 2]
    assert found.selected.repeats == found.baselines["kmeans"].repeats  # the same frozen backbone
    assert found.selected.repeats[0].all == found.selected.all


def losses(run):
    return [record["loss"] for record in run.records()]


def test_images_held_out_and_their_labels_are_not_trained_on(run_inductive, small_set, validation):
    images, _, labels = small_set
    noise = np.where(validation[:, None, None, None], np.random.default_rng(0).integers(0, 256, images.shape), images)
    swapped = np.where(validation & (labels >= 0), 1 - labels, labels)
    options = ("promptcal-warmup", "selection.by=last")
    original = run_inductive(*options, output="1")
    changed = run_inductive(*options, output="2", images=noise.astype(np.uint8), labels=swapped)
    assert losses(original) == losses(changed)
    noise[np.flatnonzero(~validation)[::2]] = 0  # some of these are drawn in any case
    assert losses(run_inductive(*options, output="3", images=noise.astype(np.uint8))) != losses(changed)


def test_a_run_is_not_resumed_with_another_protocol(run_inductive, small_set, common_settings):
    run = run_inductive("kmeans")
    info = json.loads(run.directory.info_file.read_text())
    run.directory.info_file.write_text(json.dumps({**info, "status": "running"}))
    with pytest.raises(RunError, match="has other images or labels"):
        fit(
            images=small_set[0], labels=small_set[2], n_classes=4, method="kmeans", output=run.path,
            overrides=[*common_settings, *SHORT], resume=True, progress=False,
            report=False,
        )  # fmt: skip
    assert run_inductive("kmeans", resume=True).directory.results().protocol == "inductive"


def test_too_few_test_images_are_refused(small_set, quick_settings, validation, tmp_path):
    images, _, labels = small_set
    with pytest.raises(DataError, match="3 test images cannot be clustered into 4 classes"):
        run_fit(FitRequest(
            images=images, labels=labels, n_classes=4, output=tmp_path / "run", overrides=tuple(quick_settings),
            inductive=Inductive(validation, ImageSet.of(images[:3]), ["0", "1", "0"]), progress=False,
            report=False,
        ))  # fmt: skip


@pytest.mark.slow
def test_mini_inductive_needs_no_download(promptcal, tmp_path, quick_settings):
    settings = (*quick_settings, *SHORT, *SHORT_STAGES, "data.batch_size=500", "selection.max_images=200")
    arguments = ["benchmark", "mini-inductive", "--root", tmp_path, "--output", tmp_path / "run", "-q", "--no-report"]
    arguments += ["--verbose"]
    arguments += ["--method", "promptcal-warmup"]
    code, out, err = promptcal(*arguments, *(part for s in settings for part in ("--set", s)))
    assert code == 0, err
    found = RunDirectory(tmp_path / "run").results()
    assert found.protocol == "inductive"
    lines = iter(out[out.index("accuracy on the test images, %") :].splitlines())
    header = next(line for line in lines if "All" in line)
    assert [cell.strip() for cell in header.strip("┃").split("┃")][1:] == [
        "All", "Known", "New", "Known*", "New*", "NMI", "ARI",
    ]  # fmt: skip
    shown = next(line for line in lines if "PromptCAL" in line)
    percent = found.selected.percent()
    expected = [f"{percent[part]:.1f}" for part in PARTS]
    assert [cell.strip() for cell in shown.strip("│").split("│")][1:] == expected
    # 250 of the 500 test images are of known classes, so the accuracy is a multiple of 1/250
    assert found.selected.known * 250 == pytest.approx(round(found.selected.known * 250))


def test_a_source_without_test_images_is_refused(tmp_path):
    (tmp_path / "cub_train.tar").touch()
    with pytest.raises(DataError, match="cub_train.tar in .* has no test images, which cub-inductive needs"):
        benchmark(name="cub-inductive", root=tmp_path, output=tmp_path / "run", report=False)
