"""`SemiSupervisedDiscovery` follows the conventions of scikit-learn and agrees with `promptcal.cluster`."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from promptcal import SemiSupervisedDiscovery, api

FAST = ("clustering.readout=kmeans", "clustering.n_init=3", "estimation.n_init=1")
NOT_APPLICABLE = {"check_estimators_dtypes": "its rounded rows are zeros, which have no direction: an error here"}
RECENT = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 6)


def run_checks(estimator):
    found = estimator_checks.check_estimator(estimator, expected_failed_checks=NOT_APPLICABLE, on_fail=None)
    assert len(found) > 40
    assert [f"{c['check_name']}: {c['exception']}" for c in found if c["status"] == "failed"] == []
    assert {c["check_name"] for c in found if c["status"] == "xfail"} == set(NOT_APPLICABLE)


@pytest.mark.skipif(not RECENT, reason="checks of other estimators than one's own cannot be left out before 1.6")
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn():
    run_checks(SemiSupervisedDiscovery(overrides=FAST))


@pytest.mark.slow
@pytest.mark.skipif(not RECENT, reason="see above")
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn_with_the_trained_read_out():
    run_checks(SemiSupervisedDiscovery())


def mixture(n, seed):
    centres = np.random.default_rng(3).normal(size=(4, 10))
    generator = np.random.default_rng(seed)
    truth = generator.integers(4, size=n)
    return 3 * centres[truth] + generator.normal(size=(n, 10)), truth


X, TRUTH = mixture(120, 0)
Y = np.where((TRUTH < 2) & (np.arange(120) % 2 == 0), 10 * TRUTH, -1)  # the classes are 0 and 10


@pytest.fixture(scope="module")
def fitted():
    return SemiSupervisedDiscovery(n_classes=4, overrides=("clustering.n_init=4",)).fit(X, Y)


def test_it_finds_what_the_function_finds(fitted, tmp_path):
    run = api.cluster(
        features=X, labels=Y, n_classes=4, output=tmp_path / "run", overrides=("clustering.n_init=4",),
        progress=False, report=False,
    )  # fmt: skip
    found = run.assignments()
    assert np.array_equal(fitted.labels_, found.clusters)
    assert fitted.confidence_ == pytest.approx(found.confidence, abs=1e-4)
    assert fitted.stability_ == pytest.approx(found.stability, abs=1e-4)
    new, truth = mixture(50, 1)
    predicted = api.predict(run=run, images=new, progress=False)
    assert np.array_equal(fitted.predict(new), predicted.clusters)
    assert np.array_equal(fitted.none_of_these(new), ~predicted.accepted)
    assert fitted.none_of_these(-new).mean() > 0.8
    assert fitted.classes_.tolist() == [0, 10]
    assert (fitted.predict(new)[truth < 2] == truth[truth < 2]).mean() > 0.95


def test_probabilities_and_cosines(fitted):
    new, _ = mixture(50, 1)
    shares = fitted.predict_proba(new)
    assert shares.sum(axis=1) == pytest.approx(1)
    assert np.array_equal(shares.argmax(axis=1), fitted.predict(new))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (new, fitted.cluster_centers_)]
    assert fitted.transform(new) == pytest.approx(unit[0] @ unit[1].T, abs=1e-5)


def test_pipelines_clones_pickles_and_output(fitted):
    pytest.importorskip("pandas")
    model = make_pipeline(StandardScaler(), SemiSupervisedDiscovery(n_classes=4, overrides=FAST))
    assert model.fit(X, Y).predict(X).shape == (120,)
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(X), fitted.predict(X))
    frame = clone(model).set_output(transform="pandas").fit(X, Y).transform(X)
    assert list(frame.columns) == [f"semisuperviseddiscovery{i}" for i in range(4)]


def test_labels_of_any_type(fitted):
    model = SemiSupervisedDiscovery(n_classes=4, overrides=FAST)
    texts = np.array(["", "a", "b"])[np.where(Y < 0, 0, 1 + Y // 10)]
    missing = np.where(Y < 0, np.nan, Y)
    for labels in (texts, texts.astype(object), missing, Y.astype(float)):
        assert np.array_equal(model.fit(X, labels).labels_, clone(model).fit(X, Y).labels_)
    assert model.fit(X, texts).classes_.tolist() == ["a", "b"]
    assert len(np.unique(SemiSupervisedDiscovery(overrides=FAST).fit(X).labels_)) == 4
    assert SemiSupervisedDiscovery(overrides=FAST).fit(X, TRUTH).n_classes_ == 4  # all rows are labelled


def test_bad_input_is_a_value_error(fitted):
    for labels, n_classes in ((Y, 1), (Y, 500)):
        with pytest.raises(ValueError, match="n-classes|categories"):
            SemiSupervisedDiscovery(n_classes=n_classes, overrides=FAST).fit(X, labels)
    with pytest.raises(ValueError, match="only zeros"):
        fitted.predict(np.zeros((2, 10)))
    with pytest.raises(ValueError, match="10 features"):
        fitted.predict(X[:, :3])


def test_notebooks_show_the_categories(fitted):
    shown = fitted._repr_mimebundle_()["text/html"]
    assert "new-1" in shown
    assert "SemiSupervisedDiscovery" in shown
    assert "new-1" not in SemiSupervisedDiscovery()._repr_html_()
