"""Validation uses held-out labels and the silhouette, never hidden labels."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from promptcal.api import fit
from promptcal.data import ImageSet, View
from promptcal.data.store import decode
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.errors import ConfigError
from promptcal.methods import METHODS, load_config
from promptcal.metrics import discovery_accuracy
from promptcal.pipeline.clustering import validation_kmeans
from promptcal.training.embedding import embed
from promptcal.training.validation import OracleValidator, Validator


@pytest.fixture(scope="module")
def scene(small_set, quick_settings, pretrained_network):
    images, truth, labels = small_set
    config = load_config(overrides=(*quick_settings, "model.image_size=16"), values={"n_classes": 4})
    network = pretrained_network(config)
    store, _, _ = decode(ImageSet.of(images), 36)
    held_out = np.full(len(labels), -1)
    for c in (0, 1):
        chosen = np.flatnonzero(labels == c)[:2]
        held_out[chosen] = c
    return (
        config,
        network,
        View(store, *network.vit.preprocessing),
        np.where(held_out >= 0, -1, labels),
        held_out,
        truth,
    )


def mean_score(known, silhouette):
    return (known + silhouette) / 2


def cluster_by(config):
    kmeans = validation_kmeans(config)
    return lambda features, labels: kmeans(features, labels).labels_


@pytest.mark.parametrize("some", [False, True])
def test_the_score_is_of_held_out_labels_and_of_images_predicted_as_new(scene, some):
    """With a mask, only images that were held out entirely are scored."""
    config, network, view, labels, held_out, _ = scene
    mask = (held_out >= 0) | (np.arange(48) % 2 == 1) if some else np.ones(48, dtype=bool)
    cluster = cluster_by(config)
    validator = Validator(view, labels, held_out, config, only=mask if some else None)
    found = validator.validate(network, cluster, mean_score)
    features = embed(network, view, torch.arange(48))
    clusters = cluster(features, labels)
    right = [clusters[i] == held_out[i] for i in range(48) if held_out[i] >= 0]
    new = [i for i in range(48) if mask[i] and labels[i] < 0 and clusters[i] >= 2]
    assert found.known == pytest.approx(sum(right) / 4)
    assert found.silhouette == pytest.approx(silhouette_score(features.numpy()[new], clusters[new]), abs=1e-5)
    assert found.score == pytest.approx((found.known + found.silhouette) / 2)


@pytest.mark.parametrize(
    ("method", "stage", "expected"),
    [
        ("promptcal", "warmup", 0.2),
        ("promptcal", "affinity", 0.5),
        ("promptcal-warmup", "warmup", 0.2),
        ("gcd", "gcd", 0.2),
        ("simgcd", "simgcd", 0.5),
        ("orca", "orca", 0.5),
        ("uno", "uno", 0.5),
        ("rankstats", "rankstats", 0.5),
    ],
)
def test_each_method_says_how_epochs_are_compared(method, stage, expected):
    config = load_config(values={"n_classes": 4, "method": method})
    assert METHODS[method](config).validation_score(stage, 0.2, 0.8) == pytest.approx(expected)


def test_without_new_classes_only_known_ones_are_scored(scene):
    config, network, view, labels, held_out, _ = scene
    config = config.model_copy(update={"n_classes": 2})
    found = Validator(view, labels, held_out, config).validate(network, cluster_by(config), mean_score)
    assert found.score == found.known


def best_matching(pairs, clusters, classes):
    """The largest share of (class, cluster) pairs that a one-to-one matching of clusters to classes explains."""
    clusters = [*clusters, *(-1 - i for i in range(max(0, len(classes) - len(clusters))))]
    matchings = (dict(zip(classes, chosen, strict=True)) for chosen in permutations(clusters, len(classes)))
    return max(sum(matching[c] == k for c, k in pairs) for matching in matchings) / len(pairs)


def test_oracle_is_the_rule_of_the_release(scene):
    """Clustering without labels, Known with a separate matching, silhouette of the images whose class is new."""
    config, network, view, _, _, truth = scene
    images, cluster = torch.arange(0, 48, 2), cluster_by(config)
    names = [f"class {truth[i]}" for i in images]
    oracle = OracleValidator(view, images, names, ["class 0", "class 1"])
    found = oracle.validate(network, cluster, mean_score)
    features = embed(network, view, images)
    clusters = cluster(features, None)
    known = [(names[i], clusters[i]) for i in range(24) if names[i] in ("class 0", "class 1")]
    assert found.known == pytest.approx(best_matching(known, sorted(set(clusters)), ["class 0", "class 1"]))
    new = [i for i in range(24) if names[i] in ("class 2", "class 3")]
    assert found.silhouette == pytest.approx(silhouette_score(features.numpy()[new], clusters[new]), abs=1e-5)
    assert found.score == pytest.approx((found.known + found.silhouette) / 2)


def test_oracle_matches_known_classes_apart_from_the_others(scene):
    """Each cluster has twice as many images of a new class as of a known one, which a joint matching would score 0."""
    _, network, view, _, _, truth = scene
    chosen = np.concatenate([np.flatnonzero(truth == c)[: 6 if c < 2 else 12] for c in range(4)])
    names = [f"class {truth[i]}" for i in chosen]
    oracle = OracleValidator(view, torch.from_numpy(chosen), names, ["class 0", "class 1"])

    def pairs_of_classes(features, labels):
        assert labels is None
        return truth[chosen] % 2

    assert discovery_accuracy(names, truth[chosen] % 2, ["class 0", "class 1"]).known == 0
    assert oracle.validate(network, pairs_of_classes, mean_score).known == 1


def test_all_held_out_images_are_used_and_no_more_than_the_limit(scene):
    config, _, view, labels, held_out, _ = scene
    limited = config.model_copy(update={"selection": config.selection.model_copy(update={"max_images": 43})})
    validator = Validator(view, labels, held_out, limited)
    assert len(validator.images) == 43
    assert (validator.held_out >= 0).sum() == 4


def test_a_small_validation_with_many_classes_has_a_label_of_each(scene):
    config, _, view, _, _, _ = scene
    generator = np.random.default_rng(0)
    labels = np.full(3000, -1)
    labels[generator.choice(3000, 60, replace=False)] = np.repeat(np.arange(20), 3)
    held_out = np.full(3000, -1)
    held_out[np.flatnonzero(labels < 0)[:400]] = generator.integers(20, size=400)
    selection = config.selection.model_copy(update={"max_images": 300})
    limited = config.model_copy(update={"selection": selection, "n_classes": 25})
    validator = Validator(view, labels, held_out, limited)
    assert len(validator.images) == 300
    assert np.unique(validator.labels[validator.labels >= 0]).tolist() == list(range(20))
    assert (validator.held_out >= 0).sum() >= 100
    # perfectly separable: the embedding of an image is its class
    shown = np.where(validator.labels >= 0, validator.labels, validator.held_out)
    hidden = np.where(shown >= 0, shown, 20 + np.arange(300) % 5)
    features = torch.eye(25)[torch.from_numpy(hidden)]
    assert validator._held_out_accuracy(cluster_by(limited)(features, validator.labels)) == 1.0


def test_held_out_labels_are_not_trained_on_but_are_used_for_the_result(
    tmp_path, small_set, quick_settings, monkeypatch
):
    images, _, labels = small_set
    seen = []
    original = SemiSupervisedKMeans.fit

    def watch(self, X, y=None, **kwargs):
        if y is not None:  # without labels: how many parts a category has
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
        report=False,
    )
    n_labelled, n_held_out = (labels >= 0).sum(), 4
    n_trained = n_labelled - n_held_out
    assert seen[:6] == [n_labelled, *[n_trained] * 4, n_labelled]  # first result, validations, final result
    assert set(seen[6:]) == {n_trained}  # the comparison of both results


@pytest.mark.slow
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
            report=False,
        )
        outcomes.append((run.directory.assignments_file.read_text(), (tmp_path / name / "embeddings.npy").read_bytes()))
        assert (run.directory.results().stages["affinity"].accuracy is None) == (given is None)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_oracle_without_test_images_is_refused(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    with pytest.raises(ConfigError, match="selects on the test images of a benchmark.*selection.by=validation"):
        fit(
            images=images,
            labels=labels,
            n_classes=4,
            output=tmp_path / "run",
            overrides=(*quick_settings, "selection.by=oracle"),
            progress=False,
            report=False,
        )
    assert not (tmp_path / "run").exists()
