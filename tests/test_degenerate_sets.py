"""Sets at the edge of what can be fitted: each ends with sane results, or with one sentence that says what to do."""

import csv
import json
import math
import warnings

import numpy as np
import pytest

from promptcal import api
from promptcal.data import embedded_set
from promptcal.errors import PromptCALError, PromptCALWarning

DATA = embedded_set("train")


def pictures(*counts):
    """So many real images of class 0, of class 1, ..., and their classes."""
    chosen = np.concatenate([np.flatnonzero(DATA.labels == c)[:n] for c, n in enumerate(counts)])
    return DATA.images[chosen], DATA.labels[chosen]


def labelled(classes, **each):
    """Labels for the first ``each`` images of the classes c0, c1, ... (-1 elsewhere)."""
    labels = np.full(len(classes), -1)
    for name, n in each.items():
        labels[np.flatnonzero(classes == int(name[1:]))[:n]] = int(name[1:])
    return labels


def fitted(tmp_path, quick_settings, images, labels, n_classes, *more, method=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = api.fit(
            images=images, labels=labels, n_classes=n_classes, method=method, output=tmp_path / "run",
            overrides=[*quick_settings, "warmup.epochs=1", "affinity.epochs=1", *more], progress=False,
        )  # fmt: skip
    check_sane(run, images, labels, n_classes)
    return run


def check_sane(run, images, labels, n_classes):
    """Everything written is there for every image, finite, in range, and labels are kept."""
    found = run.assignments()
    assert len(found) == len(images)
    assert len(found.names) == len(set(found.names)) == n_classes
    assert ((found.clusters >= 0) & (found.clusters < n_classes)).all()
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    embeddings = np.load(run.path / "embeddings.npy")
    assert np.isfinite(embeddings).all()
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx(1, abs=1e-4)
    assert np.isfinite(run.centres.numpy()).all()
    if labels is not None:
        known = sorted({int(y) for y in labels if y >= 0})
        assert [found.names[c] for c in found.clusters[labels >= 0]] == [str(y) for y in labels[labels >= 0]]
        assert [n for n, k in zip(found.names, found.known, strict=True) if k] == [str(y) for y in known]
    for line in (run.path / "metrics.jsonl").read_text().splitlines() if (run.path / "metrics.jsonl").exists() else []:
        assert json.loads(line)["loss"] is not None  # null is what is not finite
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = run.predict(images, accept_all=True, progress=False)
    assert all(math.isfinite(c) for c in again.confidence)
    rows = list(csv.DictReader((run.path / "assignments.csv").open()))
    assert len(rows) == len(images)


def test_one_known_class(tmp_path, quick_settings):
    images, classes = pictures(12, 12)
    fitted(tmp_path, quick_settings, images, labelled(classes, c0=6), 2)


def test_one_labelled_image_in_each_class(tmp_path, quick_settings):
    images, classes = pictures(8, 8, 8)
    fitted(tmp_path, quick_settings, images, labelled(classes, c0=1, c1=1), 3)


@pytest.mark.slow
def test_a_single_label_in_all(tmp_path, quick_settings):
    images, classes = pictures(8, 8)
    fitted(tmp_path, quick_settings, images, labelled(classes, c0=1), 2)


def test_all_images_are_the_same(tmp_path, quick_settings):
    images = np.repeat(DATA.images[:1], 16, axis=0)
    labels = np.array([0, 0, 0, 1, 1, 1] + [-1] * 10)
    run = fitted(tmp_path, quick_settings, images, labels, 3)
    assert api.report(run=run, progress=False).n_shown == 16


@pytest.mark.slow
def test_all_images_are_black(tmp_path, quick_settings):
    fitted(tmp_path, quick_settings, np.zeros((10, 32, 32, 3), np.uint8), np.array([0, 0, 1, 1] + [-1] * 6), 3)


def test_as_many_classes_as_are_known(tmp_path, quick_settings):
    images, classes = pictures(10, 10)
    run = fitted(tmp_path, quick_settings, images, labelled(classes, c0=5, c1=5), 2)
    assert all(run.known)


def test_more_neighbours_and_memory_than_images(tmp_path, quick_settings):
    images, classes = pictures(8, 8)
    settings = ("affinity.k=5000", "affinity.memory=8192", "affinity.negatives=9000")
    fitted(tmp_path, quick_settings, images, labelled(classes, c0=4), 2, *settings)


@pytest.mark.slow
def test_a_batch_larger_than_the_set(tmp_path, quick_settings):
    images, classes = pictures(6, 6)
    fitted(tmp_path, quick_settings, images, labelled(classes, c0=3), 2, "data.batch_size=48")


def test_two_images(tmp_path, quick_settings):
    images, _ = pictures(1, 1)
    run = fitted(tmp_path, quick_settings, images, np.array([0, -1]), 2)
    assert api.report(run=run, progress=False).n_shown == 2


@pytest.mark.slow
def test_two_images_and_no_label(tmp_path, quick_settings):
    images, _ = pictures(1, 1)
    fitted(tmp_path, quick_settings, images, None, 2)


@pytest.mark.slow
def test_as_many_categories_as_images(tmp_path, quick_settings):
    images, classes = pictures(3, 3)
    run = fitted(tmp_path, quick_settings, images, labelled(classes, c0=1), 6)
    assert len(np.unique(run.assignments().clusters)) == 6


def test_no_labels(tmp_path, quick_settings):
    images, _ = pictures(8, 8)
    run = fitted(tmp_path, quick_settings, images, None, 2)
    assert run.config.method == "kmeans"


@pytest.mark.slow
def test_one_category_in_all(tmp_path, quick_settings):
    images, classes = pictures(8, 4)
    run = fitted(tmp_path, quick_settings, images, labelled(classes, c0=4), 1)
    assert set(run.assignments().clusters) == {0}


def test_without_labels_a_variant_does_not_keep_the_run_from_being_read(tmp_path, quick_settings):
    images, _ = pictures(6, 6)
    with pytest.warns(PromptCALWarning, match="no image is labelled"):
        run = api.fit(
            images=images,
            n_classes=2,
            overrides=[*quick_settings, "variant=recommended"],
            output=tmp_path / "run",
            progress=False,
        )
    assert (run.config.method, run.config.variant) == ("kmeans", "official")
    assert len(api.predict(run=tmp_path / "run", images=images[:3], progress=False)) == 3


@pytest.mark.slow
def test_one_unlabelled_image(tmp_path, quick_settings):
    images, classes = pictures(6, 6)
    labels = labelled(classes, c0=6, c1=5)
    fitted(tmp_path, quick_settings, images, labels, 3)


@pytest.mark.slow
def test_a_rare_class_among_large_ones(tmp_path, quick_settings):
    images, classes = pictures(30, 2)
    fitted(tmp_path, quick_settings, images, labelled(classes, c0=20, c1=1), 3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gcd", "simgcd", "orca", "uno", "rankstats", "promptcal-warmup"])
@pytest.mark.parametrize("kind", ["two images", "one known class", "all known", "the same"])
def test_every_method_bears_the_smallest_sets(tmp_path, quick_settings, method, kind):
    images, classes = pictures(5, 5)
    labels, n_classes = labelled(classes, c0=3), 2
    if kind == "two images":
        images, labels = images[[0, 9]], np.array([0, -1])
    elif kind == "all known":
        labels = labelled(classes, c0=3, c1=3)
    elif kind == "the same":
        images, labels, n_classes = np.repeat(images[:1], 8, axis=0), np.array([0, 0, 1, 1] + [-1] * 4), 3
    epochs = () if method == "promptcal-warmup" else (f"{method}.epochs=1",)
    fitted(tmp_path, quick_settings, images, labels, n_classes, *epochs, method=method)


@pytest.mark.parametrize(
    ("n", "labels", "n_classes", "message"),
    [
        (1, [-1], 1, "1 image cannot be sorted into categories; give at least 2"),
        (4, [0, 0, 1, 1], 2, "every image is labelled, so there is nothing to discover; add unlabelled images"),
        (4, [0, 1, 2, -1], 2, "name 3 classes but --n-classes is 2; raise it to at least 3"),
        (4, [0, -1, -1, -1], 9, "3 unlabelled images cannot form 8 new categories; lower --n-classes"),
        (4, [-1, -1, -1, -1], 5, "4 unlabelled images cannot form 5 new categories; lower --n-classes"),
        (4, [0, -1, -1], 2, "3 labels do not fit 4 images; give one per image"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(tmp_path, quick_settings, n, labels, n_classes, message):
    with pytest.raises(PromptCALError, match=message):
        api.fit(
            images=DATA.images[:n], labels=labels, n_classes=n_classes, output=tmp_path / "run",
            overrides=quick_settings, progress=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
