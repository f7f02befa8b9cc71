"""Temperature, calibration error and threshold against scipy, numpy and plain loops; decisions on real images."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize_scalar

from promptcal.api import fit, predict
from promptcal.data import embedded_set
from promptcal.discovery.calibration import (
    acceptance_threshold,
    best_temperature,
    calibrate,
    calibrate_run,
    calibration_error,
    left_out_cosines,
    negative_log_likelihood,
)
from promptcal.discovery.partition import Partition, nearest_centroids
from promptcal.errors import ConfigError, PromptCALWarning
from promptcal.run.inference import Run


def drawn_from(scores, temperature, seed=0):
    """Classes drawn from the softmax of the scores at a temperature."""
    generator = np.random.default_rng(seed)
    shares = np.exp(scores / temperature)
    shares /= shares.sum(axis=1, keepdims=True)
    return np.array([generator.choice(len(p), p=p) for p in shares])


def smoothed_likelihood(scores, classes, temperature):
    """Image by image: right n+1 times in n+2, the runner-up else."""
    n, total = len(classes), 0.0
    for own, y in zip(scores / temperature, classes, strict=True):
        logs = own - np.log(np.exp(own - own.max()).sum()) - own.max()
        runner_up = max(value for c, value in enumerate(logs) if c != y)
        total -= ((n + 1) * logs[y] + runner_up) / (n + 2)
    return total / n


@pytest.mark.parametrize(("n", "truth"), [(8, 0.05), (60, 0.05), (400, 0.3), (400, 2.0)])
def test_the_temperature_is_where_the_likelihood_is_greatest(n, truth):
    scores = np.random.default_rng(n).uniform(-1, 1, (n, 6))
    classes = drawn_from(scores, truth)
    found = minimize_scalar(
        lambda log: smoothed_likelihood(scores, classes, np.exp(log)), bounds=(-9, 6), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    assert best_temperature(scores, classes) == pytest.approx(np.exp(found.x), rel=1e-4)


def test_with_many_images_it_is_scipys_optimum_of_the_plain_likelihood_and_the_truth():
    scores = np.random.default_rng(0).uniform(-1, 1, (20_000, 4))
    classes = drawn_from(scores, 0.2)
    plain = minimize_scalar(
        lambda log: negative_log_likelihood(scores, classes, np.exp(log)), bounds=(-6, 4), method="bounded"
    )
    assert best_temperature(scores, classes) == pytest.approx(np.exp(plain.x), rel=0.01)
    assert best_temperature(scores, classes) == pytest.approx(0.2, rel=0.05)


def test_a_few_right_answers_are_no_certainty():
    """Laplace: three of three right by the same margin is a confidence of 4 in 5."""
    scores = np.array([[0.9, 0.4], [0.4, 0.9], [0.9, 0.4]])
    temperature = best_temperature(scores, np.array([0, 1, 0]))
    assert 1 / (1 + np.exp(-0.5 / temperature)) == pytest.approx(4 / 5)


def test_wrong_or_constant_scores_have_a_temperature_too():
    wrong = best_temperature(np.array([[1.0, 0.0]] * 5), np.ones(5, dtype=int))
    assert np.isfinite(wrong)
    assert wrong > 100
    assert best_temperature(np.zeros((3, 2)), np.array([0, 1, 0])) == 1.0
    assert best_temperature(np.ones((3, 1)), np.zeros(3, dtype=int)) == 1.0


def test_calibration_error_is_the_mean_gap_over_bins():
    generator = np.random.default_rng(1)
    shares = generator.dirichlet(np.full(5, 0.4), size=300)
    classes = generator.integers(5, size=300)
    total = 0.0
    for low in np.arange(15):
        members = [
            i for i in range(300) if low <= 15 * shares[i].max() < low + 1 or (low == 14 and shares[i].max() == 1)
        ]
        if members:
            right = np.mean([shares[i].argmax() == classes[i] for i in members])
            total += len(members) / 300 * abs(right - np.mean([shares[i].max() for i in members]))
    assert calibration_error(shares, classes) == pytest.approx(total)


def test_overconfidence_is_corrected_on_other_images():
    scores = np.random.default_rng(2).normal(size=(4000, 8))
    classes = drawn_from(scores, 2.0)
    found = calibrate(scores[:500], classes[:500], "held-out", temperature=0.2)
    assert found.error_before > 0.4
    assert found.error_after < 0.1
    assert found.nll_after < found.nll_before
    fresh = [
        np.exp(scores[500:] / t) / np.exp(scores[500:] / t).sum(axis=1, keepdims=True) for t in (0.2, found.temperature)
    ]
    before, after = (calibration_error(shares, classes[500:]) for shares in fresh)
    assert before > 0.4
    assert after < 0.05


def test_training_images_never_raise_the_confidence():
    scores = np.random.default_rng(3).uniform(-1, 1, (200, 5))
    for truth, expected in ((0.05, 0.1), (0.4, None)):
        classes = drawn_from(scores, truth)
        found = calibrate(scores, classes, "left-out", temperature=0.1)
        assert found.temperature == (expected or best_temperature(scores, classes))
        held_out = calibrate(scores, classes, "held-out", temperature=0.1)
        assert held_out.temperature == best_temperature(scores, classes)


@pytest.mark.parametrize("n", [1, 7, 20, 1000])
def test_the_threshold_is_the_largest_that_accepts_enough(n):
    similarity = np.random.default_rng(n).uniform(size=n)
    threshold = acceptance_threshold(similarity, 0.95)
    assert threshold == max(t for t in similarity if np.mean(similarity >= t) >= 0.95)
    low, high = (np.quantile(similarity, 0.05, method=method) for method in ("lower", "higher"))
    assert low <= threshold <= high


def test_an_image_is_compared_with_a_centroid_computed_without_it():
    generator = torch.Generator().manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(20, 5, generator=generator), dim=1)
    clusters = torch.arange(20) % 3
    centroids = torch.stack([features[clusters == c].mean(dim=0) for c in range(3)])
    chosen = torch.tensor([0, 4, 7])
    found = left_out_cosines(features[chosen], clusters[chosen], centroids, clusters.bincount())
    for row, i in zip(found, chosen, strict=True):
        for c in range(3):
            members = [j for j in range(20) if clusters[j] == c and j != i]
            expected = torch.nn.functional.cosine_similarity(features[i], features[members].mean(dim=0), dim=0)
            assert row[c] == pytest.approx(float(expected), abs=1e-5)


def test_the_basis_of_the_calibration_depends_on_what_was_held_out():
    generator = torch.Generator().manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(30, 5, generator=generator), dim=1)
    labels = np.where(np.arange(30) < 12, np.arange(30) % 2, -1)
    clusters = np.where(labels >= 0, labels, np.arange(30) % 4)
    centroids = torch.stack([features[torch.from_numpy(clusters) == c].mean(dim=0) for c in range(4)])
    partition, nothing = Partition.of(clusters, centroids), np.full(30, -1)
    held_out = np.where(np.arange(30) < 4, labels, -1)

    def run(held_out, outputs=None, labels=labels):
        return calibrate_run(
            features, partition, labels, held_out, held_out, labels_in_centroids=True, temperature=0.07,
            outputs=None if outputs is None else outputs.__getitem__,
        )  # fmt: skip

    assert (run(held_out).basis, run(held_out).n) == ("held-out", 4)
    assert (run(nothing).basis, run(nothing).n) == ("left-out", 12)
    outputs = torch.randn(30, 4, generator=generator)
    assert run(held_out, outputs).temperature == best_temperature(outputs[:4].double().numpy(), labels[:4])
    none = run(nothing, outputs)
    assert (none.basis, none.n, none.temperature) == ("none", 0, 0.07)
    assert run(nothing, labels=nothing).basis == "none"


def without_itself(features, members, i, c):
    """Cosine of image i with the mean of the other images of cluster c."""
    others = [features[j].numpy() for j in range(len(features)) if members[j] == c and j != i]
    mean = sum(others) / len(others)
    return float(features[i].numpy() @ mean / np.sqrt(mean @ mean))


@pytest.mark.parametrize("kind", ["labels in the centroids", "labels elsewhere", "classifier"])
def test_95_percent_of_the_unlabelled_images_reach_the_threshold(kind):
    """Each image against centroids computed without it; an image with a held-out label counts as unlabelled."""
    generator = torch.Generator().manual_seed(1)
    features = torch.nn.functional.normalize(torch.randn(60, 4, generator=generator), dim=1)
    outputs = torch.randn(60, 4, generator=generator) if kind == "classifier" else None
    centroids = torch.nn.functional.normalize(torch.randn(4, 4, generator=generator), dim=1)
    members = (nearest_centroids(features, centroids) if outputs is None else outputs.argmax(dim=1)).numpy()
    labels = np.where(np.arange(60) < 20, np.arange(60) % 2, -1)
    if kind == "labels in the centroids":
        members = np.where(labels >= 0, labels, members)
    centroids = torch.stack([features[torch.from_numpy(members) == c].mean(dim=0) for c in range(4)])
    if kind == "labels elsewhere":  # until every image is nearest to the centroid of its own cluster
        for _ in range(50):
            members = nearest_centroids(features, centroids).numpy()
            centroids = torch.stack([features[torch.from_numpy(members) == c].mean(dim=0) for c in range(4)])
    held_out = np.where(np.arange(60) < 6, labels, -1)
    partition = Partition.of(np.where(labels >= 0, labels, members), centroids)
    found = calibrate_run(
        features, partition, labels, held_out, held_out, temperature=0.1,
        outputs=None if outputs is None else outputs.__getitem__,
        labels_in_centroids=kind == "labels in the centroids",
    )  # fmt: skip
    nearest = {i: max(without_itself(features, members, i, c) for c in range(4)) for i in range(60)}
    unseen = [i for i in range(60) if i < 6 or i >= 20]
    enough = [t for t in nearest.values() if np.mean([nearest[i] >= t - 1e-6 for i in unseen]) >= 0.95]
    assert found.threshold == pytest.approx(max(t for t in enough if t in {nearest[i] for i in unseen}), abs=1e-5)
    assert found.n_threshold == len(unseen)
    for known in (True, False):
        chosen = [i for i in range(20, 60) if (partition.clusters[i] < 2) == known]
        accepted = np.mean([nearest[i] >= found.threshold - 1e-6 for i in chosen])
        assert (found.accepted_known if known else found.accepted_new) == pytest.approx(accepted)


def test_an_image_alone_in_its_cluster_is_not_used():
    features = torch.eye(3)[[0, 0, 0, 1]]
    partition = Partition.of(np.array([0, 0, 0, 1]), torch.eye(3)[:2])
    found = calibrate_run(
        features, partition, *[np.full(4, -1)] * 3, outputs=None, labels_in_centroids=True, temperature=0.1
    )
    assert (found.n_threshold, found.threshold) == (3, pytest.approx(1.0))


@pytest.fixture(scope="module")
def run(tmp_path_factory, common_settings):
    """300 embedded images of six classes, three known, on the frozen features."""
    data = embedded_set("train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:50] for c in range(6)])
    truth = data.labels[chosen]
    labels = np.where((truth < 3) & (np.arange(300) % 2 == 0), truth, -1)
    return fit(
        images=data.images[chosen], labels=labels, n_classes=6, method="kmeans", progress=False,
        output=tmp_path_factory.mktemp("calibrated") / "run",
        overrides=[*common_settings, "model.image_size=32", "data.validation_fraction=0.4"], report=False,
    )  # fmt: skip


def test_a_run_stores_and_uses_its_calibration(run):
    stored = json.loads((run.path / "calibration.json").read_text())
    assert (stored["n"], stored["basis"], stored["target"]) == (30, "held-out", 0.95)
    assert stored["nll_after"] <= stored["nll_before"]
    images = embedded_set("test").images[:40]
    found = run.predict(images, progress=False)
    features = run.embed(images, progress=False)[1]
    cosines = torch.nn.functional.cosine_similarity(features.unsqueeze(1), run.centroids, dim=2)
    shares = torch.softmax(cosines / stored["temperature"], dim=1).numpy()
    assert np.allclose(found.confidence, shares[np.arange(40), found.clusters], atol=1e-5)
    assert np.allclose(found.similarity, cosines.max(dim=1).values.numpy(), atol=1e-5)
    assert np.array_equal(found.accepted, found.similarity >= stored["threshold"])


def test_noise_is_none_of_the_categories_and_images_of_them_are_accepted(run):
    noise = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    data = embedded_set("test")
    of_known = data.images[data.labels < 3]
    assert run.predict(noise, progress=False).accepted.mean() < 0.1
    assert run.predict(of_known, progress=False).accepted.mean() > 0.85


def test_the_threshold_can_be_moved_or_dropped(run, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    similarity = run.predict(noise, progress=False).similarity
    between = float(np.sort(similarity)[1:3].mean())
    found = predict(run=run, images=noise, none_below=between, output=tmp_path / "p.csv", progress=False)
    assert np.array_equal(found.accepted, similarity >= between)
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["decision"] for r in rows] == ["accepted" if s >= between else "none" for s in similarity]
    assert list(rows[0])[-2:] == ["similarity", "decision"]
    assert predict(run=run, images=noise, accept_all=True, progress=False).accepted.all()
    for bad in ({"none_below": 0.5, "accept_all": True}, {"none_below": 2.0}):
        with pytest.raises(ConfigError, match="--none-below"):
            predict(run=run, images=noise, progress=False, **bad)


def test_the_command_counts_what_is_none_of_these(promptcal, run, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for i, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / "images" / f"{i}.png")
    arguments = ["predict", run.path, tmp_path / "images", "--quiet"]
    code, out, _ = promptcal(*arguments, "--output", tmp_path / "p.csv", "--none-below", "1")
    row = next(line for line in out.splitlines() if "none of these" in line)
    assert (code, row.split("│")[3].strip()) == (0, "3")
    _, out, _ = promptcal(*arguments, "--accept-all")
    assert [r["decision"] for r in csv.DictReader(out.splitlines())] == ["accepted"] * 3


def test_without_a_threshold_all_images_are_accepted_with_a_warning(run, tmp_path):
    copy = Run(shutil.copytree(run.path, tmp_path / "copy"))
    run.calibration.model_copy(update={"threshold": None}).write(copy.directory.calibration_file)
    images = embedded_set("test").images[:4]
    with pytest.warns(PromptCALWarning, match="no threshold .* so all images are accepted"):
        found = copy.predict(images, progress=False)
    assert found.accepted.all()
    assert np.array_equal(found.clusters, run.predict(images, progress=False).clusters)


def test_a_classifier_is_calibrated_on_its_own_outputs(small_set, common_settings, tmp_path):
    images, _, labels = small_set
    run = fit(
        images=images, labels=labels, n_classes=4, method="simgcd", output=tmp_path / "run", progress=False,
        overrides=[*common_settings, "data.validation_fraction=0.5"], report=False,
    )  # fmt: skip
    stored = run.calibration
    assert (stored.scores, stored.basis, stored.n) == ("outputs", "held-out", 6)
    features = run.embed(images, progress=False)[1]
    with torch.no_grad():
        outputs = run.network.classify(features)[:, run.columns]
    shares = torch.softmax(outputs / stored.temperature, dim=1).numpy()
    found = run.predict(images, progress=False)
    assert np.allclose(found.confidence, shares.max(axis=1), atol=1e-5)
    assert np.array_equal(found.clusters, shares.argmax(axis=1))
    unlabelled = labels < 0
    assert np.allclose(run.assignments().confidence[unlabelled], found.confidence[unlabelled], atol=1e-3)
