"""Degenerate sets: a fit gives valid results, or an error of one sentence that says what to do."""

import csv
import math
import warnings

import numpy as np
import pytest

from promptcal import api
from promptcal.data import embedded_set
from promptcal.errors import PromptCALError, PromptCALWarning

DATA = embedded_set("train")
SHORT = ("warmup.epochs=1", "affinity.epochs=1")


def pictures(*counts):
    """``counts`` real images of class 0, of class 1, ..., and their classes."""
    chosen = np.concatenate([np.flatnonzero(DATA.labels == c)[:n] for c, n in enumerate(counts)])
    return DATA.images[chosen], DATA.labels[chosen]


def labelled(classes, **each):
    """Labels for the first ``each`` images of the classes c0, c1, ... (-1 elsewhere)."""
    labels = np.full(len(classes), -1)
    for name, n in each.items():
        labels[np.flatnonzero(classes == int(name[1:]))[:n]] = int(name[1:])
    return labels


def fitted(tmp_path, settings, images, labels, n_classes, *more, method=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = api.fit(
            images=images, labels=labels, n_classes=n_classes, method=method, output=tmp_path / "run",
            overrides=[*settings, *more], progress=False,
            report=False,
        )  # fmt: skip
    check_valid(run, images, labels, n_classes)
    return run


def check_valid(run, images, labels, n_classes):
    """Every output has a row for every image, is finite and in range, and labels are kept."""
    found = run.assignments()
    assert len(found) == len(images)
    assert len(found.names) == len(set(found.names)) == n_classes
    assert ((found.clusters >= 0) & (found.clusters < n_classes)).all()
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    embeddings = np.load(run.path / "embeddings.npy")
    assert np.isfinite(embeddings).all()
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx(1, abs=1e-4)
    assert np.isfinite(run.centroids.numpy()).all()
    if labels is not None:
        known = sorted({int(y) for y in labels if y >= 0})
        assert [found.names[c] for c in found.clusters[labels >= 0]] == [str(y) for y in labels[labels >= 0]]
        assert [n for n, k in zip(found.names, found.known, strict=True) if k] == [str(y) for y in known]
    assert all(record["loss"] is not None for record in run.records())  # None if it was not finite
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = run.predict(images, accept_all=True, progress=False)
    assert all(math.isfinite(c) for c in again.confidence)
    rows = list(csv.DictReader((run.path / "assignments.csv").open()))
    assert len(rows) == len(images)


def case(counts, labels, n_classes, *settings, slow=False, id):
    return pytest.param(counts, labels, n_classes, settings, id=id, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(
    ("counts", "labels", "n_classes", "settings"),
    [
        case((12, 12), {"c0": 6}, 2, id="one known class"),
        case((8, 8, 8), {"c0": 1, "c1": 1}, 3, id="one label in each class"),
        case((8, 8), {"c0": 1}, 2, id="a single label", slow=True),
        case((6, 6), {"c0": 6, "c1": 5}, 3, id="one unlabelled image", slow=True),
        case((30, 2), {"c0": 20, "c1": 1}, 3, id="a rare class among large ones", slow=True),
        case((6, 6), {"c0": 3}, 2, "data.batch_size=48", id="a batch larger than the set", slow=True),
        case(
            (8, 8), {"c0": 4}, 2, "affinity.k=5000", "affinity.memory=8192", "affinity.negatives=9000",
            id="more neighbours and memory than images",
        ),
    ],
)  # fmt: skip
def test_a_small_set(tmp_path, quick_settings, counts, labels, n_classes, settings):
    images, classes = pictures(*counts)
    fitted(tmp_path, quick_settings, images, labelled(classes, **labels), n_classes, *SHORT, *settings)


def test_all_images_are_the_same(tmp_path, quick_settings):
    images = np.repeat(DATA.images[:1], 16, axis=0)
    labels = np.array([0, 0, 0, 1, 1, 1] + [-1] * 10)
    run = fitted(tmp_path, quick_settings, images, labels, 3, *SHORT)
    assert api.make_report(run=run, progress=False).n_shown == 16


@pytest.mark.slow
def test_all_images_are_black(tmp_path, quick_settings):
    images, labels = np.zeros((10, 32, 32, 3), np.uint8), np.array([0, 0, 1, 1] + [-1] * 6)
    fitted(tmp_path, quick_settings, images, labels, 3, *SHORT)


def test_as_many_classes_as_are_known(tmp_path, quick_settings):
    images, classes = pictures(10, 10)
    assert all(fitted(tmp_path, quick_settings, images, labelled(classes, c0=5, c1=5), 2, *SHORT).known)


def test_two_images(tmp_path, quick_settings):
    images, _ = pictures(1, 1)
    run = fitted(tmp_path, quick_settings, images, np.array([0, -1]), 2, *SHORT)
    assert api.make_report(run=run, progress=False).n_shown == 2


@pytest.mark.slow
def test_as_many_categories_as_images(tmp_path, quick_settings):
    images, classes = pictures(3, 3)
    run = fitted(tmp_path, quick_settings, images, labelled(classes, c0=1), 6, *SHORT)
    assert len(np.unique(run.assignments().clusters)) == 6


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_no_labels(tmp_path, quick_settings, n):
    images, _ = pictures(n, n)
    assert fitted(tmp_path, quick_settings, images, None, 2).config.method == "kmeans"


@pytest.mark.slow
def test_one_category(tmp_path, quick_settings):
    images, classes = pictures(8, 4)
    run = fitted(tmp_path, quick_settings, images, labelled(classes, c0=4), 1, *SHORT)
    assert set(run.assignments().clusters) == {0}


def test_without_labels_the_variant_is_dropped(tmp_path, quick_settings):
    images, _ = pictures(6, 6)
    with pytest.warns(PromptCALWarning, match="no image is labelled"):
        run = api.fit(
            images=images,
            n_classes=2,
            overrides=[*quick_settings, "variant=recommended"],
            output=tmp_path / "run",
            progress=False,
            report=False,
        )
    assert (run.config.method, run.config.variant) == ("kmeans", "official")
    assert len(api.predict(run=tmp_path / "run", images=images[:3], progress=False)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gcd", "simgcd", "orca", "uno", "rankstats", "promptcal-warmup"])
@pytest.mark.parametrize("kind", ["two images", "one known class", "all known", "the same"])
def test_every_method_fits_the_smallest_sets(tmp_path, quick_settings, common_settings, method, kind):
    images, classes = pictures(5, 5)
    labels, n_classes = labelled(classes, c0=3), 2
    if kind == "two images":
        images, labels = images[[0, 9]], np.array([0, -1])
    elif kind == "all known":
        labels = labelled(classes, c0=3, c1=3)
    elif kind == "the same":
        images, labels, n_classes = np.repeat(images[:1], 8, axis=0), np.array([0, 0, 1, 1] + [-1] * 4), 3
    settings = quick_settings if method == "promptcal-warmup" else common_settings
    fitted(tmp_path, settings, images, labels, n_classes, "optim.epochs=1", method=method)


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
def test_an_impossible_fit_is_an_error_of_one_sentence(tmp_path, quick_settings, n, labels, n_classes, message):
    with pytest.raises(PromptCALError, match=message):
        api.fit(
            images=DATA.images[:n], labels=labels, n_classes=n_classes, output=tmp_path / "run",
            overrides=quick_settings, progress=False,
            report=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_fit_can_train_heads_alone(small_set, common_settings, tmp_path):
    settings = (*common_settings, "model.image_size=8", "model.train_blocks=0", "optim.epochs=1")
    run = fitted(tmp_path, settings, small_set[0], small_set[2], 4, method="simgcd")
    assert list(run.directory.results().stages) == ["simgcd"]
