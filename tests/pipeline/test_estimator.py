"""The estimator follows the conventions of scikit-learn and agrees with the functions."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from promptcal import ConfigError, PromptCAL, RunError, predict
from promptcal.data import embedded_set
from promptcal.pipeline import time_limit


@pytest.fixture(scope="module")
def fitted(small_set, quick_settings):
    images, _, labels = small_set
    return PromptCAL(n_classes=4, overrides=quick_settings, random_state=0, verbose=False).fit(images, labels)


def test_labels_keep_the_known_classes(fitted, small_set):
    _, _, labels = small_set
    assert fitted.labels_.shape == (48,)
    assert np.array_equal(fitted.labels_[labels >= 0], labels[labels >= 0])
    assert fitted.classes_.tolist() == ["0", "1"]
    assert fitted.names_.tolist() == ["0", "1", "new-1", "new-2"]
    assert fitted.cluster_centers_.shape == (4, 192)


def test_transform_gives_unit_embeddings_nearest_to_their_predicted_centroid(fitted):
    images = embedded_set("test").images[:9]
    embeddings = fitted.transform(images)
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    distances = np.linalg.norm(embeddings[:, None] - fitted.cluster_centers_, axis=2)
    assert np.array_equal(fitted.predict(images), distances.argmin(axis=1))


def test_arrays_and_tensors_are_the_same_images(fitted):
    images = embedded_set("test").images[:3]
    assert np.array_equal(fitted.transform(images), fitted.transform(torch.from_numpy(images)))


def test_a_saved_and_loaded_estimator_is_the_same(fitted, tmp_path):
    images = embedded_set("test").images[:9]
    fitted.save(tmp_path / "model")
    loaded = PromptCAL.load(tmp_path / "model")
    assert np.array_equal(loaded.labels_, fitted.labels_)
    assert np.array_equal(loaded.transform(images), fitted.transform(images))
    assert np.array_equal(
        predict(run=tmp_path / "model", images=images, progress=False).clusters, fitted.predict(images)
    )
    with pytest.raises(RunError, match="exists already"):
        fitted.save(tmp_path / "model")


def test_probabilities_add_up_to_1_and_the_largest_is_that_of_the_predicted_cluster(fitted):
    images = embedded_set("test").images[:60]
    probabilities, clusters = fitted.predict_proba(images), fitted.predict(images)
    assert probabilities.shape == (60, 4)
    assert np.abs(probabilities.sum(axis=1) - 1).max() < 1e-12
    assert (probabilities >= 0).all()
    assert np.array_equal(probabilities.argmax(axis=1), clusters)
    found = fitted.run_.predict(images, progress=False)
    cosines = torch.from_numpy(fitted.transform(images)) @ torch.nn.functional.normalize(fitted.run_.centroids).T
    same = cosines.argmax(dim=1).numpy() == clusters  # elsewhere, two probabilities were exchanged
    assert same.mean() > 0.5
    assert np.allclose(probabilities.max(axis=1)[same], found.confidence[same], atol=1e-6)


def test_missing_labels_of_pandas_are_unlabelled(fitted, small_set, common_settings):
    pandas = pytest.importorskip("pandas")
    images, _, labels = small_set
    missing = [None, pandas.NA, float("nan"), pandas.NaT]
    values = [int(label) if label >= 0 else missing[i % 4] for i, label in enumerate(labels)]
    model = clone(fitted).set_params(method="kmeans", overrides=common_settings)
    series = pandas.Series(values, index=range(100, 148), dtype=object)
    assert np.array_equal(model.fit_predict(images, series), model.fit_predict(images, labels))


def test_loading_keeps_verbose(fitted, small_set, tmp_path, capsys):
    images, _, _ = small_set
    fitted.save(tmp_path / "quiet")
    quiet = PromptCAL.load(tmp_path / "quiet")
    assert quiet.verbose is False
    quiet.predict(images[:2])
    assert capsys.readouterr() == ("", "")
    assert PromptCAL.load(tmp_path / "quiet", verbose=True).verbose is True
    assert PromptCAL.load(fitted.run_.path).verbose is True  # a run of `promptcal fit`


def test_a_report_is_written_only_to_an_output_of_the_user(fitted, small_set, common_settings, tmp_path):
    images, _, labels = small_set
    assert not fitted.run_.directory.report_file.exists()
    model = PromptCAL(n_classes=4, method="kmeans", overrides=common_settings, output=tmp_path / "run", verbose=False)
    assert model.fit(images, labels).run_.directory.report_file.exists()


def test_fit_predict_is_fit_and_labels(fitted, small_set, quick_settings):
    images, _, labels = small_set
    model = PromptCAL(n_classes=4, overrides=quick_settings, random_state=0, verbose=False)
    assert np.array_equal(model.fit_predict(images, labels), fitted.labels_)


def test_a_clone_has_the_parameters_but_is_not_fitted(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(np.zeros((1, 32, 32, 3), np.uint8))


def test_pipelines_data_frames_and_pickles(small_set, common_settings, tmp_path):
    pytest.importorskip("pandas")
    images, _, labels = small_set
    model = PromptCAL(n_classes=4, method="kmeans", overrides=common_settings, verbose=False)
    embed = clone(model).set_params(output=tmp_path / "run")
    steps = make_pipeline(embed, StandardScaler()).set_output(transform="pandas").fit(images, labels)
    frame = steps.transform(images[:5])
    assert list(frame.columns) == [f"promptcal{i}" for i in range(192)]
    embeddings = embed.set_output(transform="default").transform(images)
    assert np.allclose(frame, ((embeddings - embeddings.mean(axis=0)) / embeddings.std(axis=0))[:5], atol=1e-4)
    again = pickle.loads(pickle.dumps(embed))
    assert np.array_equal(again.predict(images), embed.predict(images))
    with pytest.raises(RunError, match="a temporary folder, which a pickle cannot hold; use save and load"):
        pickle.dumps(model.fit(images, labels))


def test_a_long_training_is_refused_with_what_python_can_do(small_set, quick_settings, common_settings, monkeypatch):
    images, _, labels = small_set
    settings = (*quick_settings, "model.image_size=8", "warmup.epochs=1", "affinity.epochs=1")
    model = PromptCAL(n_classes=4, overrides=settings, verbose=False)
    monkeypatch.setattr(time_limit, "LONG_SECONDS", 0)
    with pytest.raises(ConfigError, match=r"in Python quick=True.* add --allow-long \(allow_long=True\)"):
        model.fit(images, labels)
    assert clone(model).set_params(allow_long=True).fit(images, labels).run_.config.method == "promptcal"
    quick = clone(clone(model).set_params(quick=True, overrides=common_settings))
    assert quick.fit(images, labels).run_.config.method == "frozen"


def test_an_estimator_of_another_method_can_be_saved_and_loaded(small_set, common_settings, tmp_path):
    images, _, labels = small_set
    model = PromptCAL(n_classes=4, method="kmeans", overrides=common_settings, random_state=0, verbose=False)
    model.fit(images, labels).save(tmp_path / "model")
    assert model.run_.config.method == "kmeans"
    assert np.array_equal(model.labels_[labels >= 0], labels[labels >= 0])
    loaded = PromptCAL.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(images), model.predict(images))
