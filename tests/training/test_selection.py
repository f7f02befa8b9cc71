"""Selection by what may be known: kept-back labels and the silhouette, never hidden labels."""

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from promptcal.api import fit, results
from promptcal.config.schema import load_config
from promptcal.data import ImageSet, View
from promptcal.data.store import decode
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.errors import ConfigError
from promptcal.run.inference import build_network
from promptcal.training.embedding import embed
from promptcal.training.validation import Selector


@pytest.fixture(scope="module")
def scene(small_set, quick_settings):
    images, truth, labels = small_set
    config = load_config(overrides=quick_settings, values={"n_classes": 4})
    network = build_network(config, 2, pretrained=True)
    store, _, _ = decode(ImageSet.of(images), 36)
    held_out = np.full(len(labels), -1)
    for c in (0, 1):
        kept_back = np.flatnonzero(labels == c)[:2]
        held_out[kept_back] = c
    return (
        config,
        network,
        View(store, *network.vit.preprocessing),
        np.where(held_out >= 0, -1, labels),
        held_out,
        truth,
    )


def test_score_is_kept_back_accuracy_and_silhouette_of_what_is_predicted_new(scene):
    config, network, view, labels, held_out, _ = scene
    selector = Selector(view, labels, held_out, config)
    look = selector.look(network, "affinity")
    features = embed(network, view, torch.arange(48))
    clusters = selector._cluster(features)
    right = [clusters[i] == held_out[i] for i in range(48) if held_out[i] >= 0]
    new = [i for i in range(48) if labels[i] < 0 and clusters[i] >= 2]
    quality = silhouette_score(features.numpy()[new], clusters[new])
    assert look.known == pytest.approx(sum(right) / 4)
    assert look.silhouette == pytest.approx(quality, abs=1e-5)
    assert look.score == pytest.approx((look.known + look.silhouette) / 2)
    assert selector.look(network, "warmup").score == look.known


def test_only_images_held_out_whole_are_scored(scene):
    config, network, view, labels, held_out, _ = scene
    validation = (held_out >= 0) | (np.arange(48) % 2 == 1)
    selector = Selector(view, labels, held_out, config, validation=validation)
    features = embed(network, view, torch.arange(48))
    clusters = selector._cluster(features)
    new = [i for i in range(48) if validation[i] and labels[i] < 0 and clusters[i] >= 2]
    look = selector.look(network, "affinity")
    assert look.silhouette == pytest.approx(silhouette_score(features.numpy()[new], clusters[new]), abs=1e-5)
    assert look.known == pytest.approx(np.mean([clusters[i] == held_out[i] for i in range(48) if held_out[i] >= 0]))


def test_oracle_uses_the_truth(scene):
    config, network, view, labels, held_out, truth = scene
    honest = Selector(view, labels, held_out, config).look(network, "affinity")
    oracle = Selector(view, labels, held_out, config, truth).look(network, "affinity")
    lying = Selector(view, labels, held_out, config, np.roll(truth, 7)).look(network, "affinity")
    assert oracle != lying
    assert honest != oracle


def test_a_look_takes_all_kept_back_images_and_no_more_than_allowed(scene):
    config, _, view, labels, held_out, _ = scene
    limited = config.model_copy(update={"selection": config.selection.model_copy(update={"max_images": 43})})
    selector = Selector(view, labels, held_out, limited)
    assert len(selector.images) == 43
    assert (selector.held_out >= 0).sum() == 4


def test_a_small_look_at_many_classes_keeps_a_label_of_each(scene):
    config, _, view, _, _, _ = scene
    generator = np.random.default_rng(0)
    labels = np.full(3000, -1)
    labels[generator.choice(3000, 60, replace=False)] = np.repeat(np.arange(20), 3)
    held_out = np.full(3000, -1)
    held_out[np.flatnonzero(labels < 0)[:400]] = generator.integers(20, size=400)
    selection = config.selection.model_copy(update={"max_images": 300})
    limited = config.model_copy(update={"selection": selection, "n_classes": 25})
    selector = Selector(view, labels, held_out, limited)
    assert len(selector.images) == 300
    assert np.unique(selector.labels[selector.labels >= 0]).tolist() == list(range(20))
    assert (selector.held_out >= 0).sum() >= 100
    # perfectly separable features: each image's class (or a new one) as its embedding
    shown = np.where(selector.labels >= 0, selector.labels, selector.held_out)
    hidden = np.where(shown >= 0, shown, 20 + np.arange(300) % 5)
    features = torch.eye(25)[torch.from_numpy(hidden)]
    assert selector._kept_back_accuracy(selector._cluster(features)) == 1.0


def test_kept_back_labels_are_not_trained_on_but_are_used_in_the_end(tmp_path, small_set, quick_settings, monkeypatch):
    images, _, labels = small_set
    seen = []
    original = SemiSupervisedKMeans.fit

    def watch(self, X, y=None, **kwargs):
        seen.append((np.asarray(y) >= 0).sum())
        return original(self, X, y, **kwargs)

    monkeypatch.setattr(SemiSupervisedKMeans, "fit", watch)
    fit(
        images=images,
        labels=labels,
        n_classes=4,
        output=tmp_path / "run",
        overrides=(*quick_settings, "data.validation_fraction=0.34"),
        progress=False,
    )
    n_labelled, n_kept_back = (labels >= 0).sum(), 4
    assert seen == [n_labelled - n_kept_back] * 4 + [n_labelled]


def test_the_truth_changes_nothing_but_the_report(tmp_path, small_set, quick_settings):
    images, truth, labels = small_set
    outcomes = []
    for name, given in (("none", None), ("true", truth), ("false", np.roll(truth, 5))):
        run = fit(
            images=images,
            labels=labels,
            truth=given,
            n_classes=4,
            output=tmp_path / name,
            overrides=quick_settings,
            progress=False,
        )
        outcomes.append((run.directory.assignments_file.read_text(), (tmp_path / name / "embeddings.npy").read_bytes()))
        assert ("accuracy" in results(run)["affinity"]) == (given is not None)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_oracle_without_truth_is_refused(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    with pytest.raises(ConfigError, match="needs the truth"):
        fit(
            images=images,
            labels=labels,
            n_classes=4,
            output=tmp_path / "run",
            overrides=(*quick_settings, "selection.by=oracle"),
            progress=False,
        )
    assert not (tmp_path / "run").exists()
