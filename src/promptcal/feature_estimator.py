"""A scikit-learn estimator for features that another model computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted

from promptcal.data.feature_set import FeatureSet
from promptcal.data.images import ImageSet
from promptcal.data.sources import TextSource
from promptcal.discovery.partition import BLOCK, centroid_cosines, largest_at
from promptcal.errors import ArgumentError, PromptCALError
from promptcal.methods import METHODS, OF_FEATURES
from promptcal.pipeline.cluster import discover, feature_values, features_settings
from promptcal.pipeline.inputs import Settings
from promptcal.pipeline.problem import Problem
from promptcal.pipeline.session import Session
from promptcal.run.directory import RunDirectory
from promptcal.run.summary import ShowsCategories
from promptcal.runtime.arguments import check_parameters, tensor_as_numpy

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, X: Any, **options: Any) -> Any:
        return estimator._validate_data(X, **options)


class SemiSupervisedDiscovery(
    ShowsCategories, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator
):
    """Sort features into the classes that some of them are labelled with, and into new categories.

    Clusters 0..n-1 are the known classes (``classes_``), the others are new. It is `promptcal.cluster` without files:
    k-means with labels, a trained read-out, calibration.

    Args:
        n_classes: Number of categories, known and new together; "auto": estimated.
        adapt: Whiten the features by the covariance within the labelled classes, if hidden labels show a gain.
        overrides: Settings, such as ("clustering.n_init=10",).
        random_state: Seed; None is 0.
        device: auto, cpu, cuda or mps.
        verbose: Show progress.

    Attributes:
        labels_: Cluster of each row of ``X``; labelled rows keep that of their class.
        classes_: The known classes; class ``classes_[i]`` is cluster i.
        n_classes_: Number of categories.
        confidence_: Calibrated probability of each row's cluster.
        stability_: Share of the starts of the read-out that agree on each row (None with clustering.readout=kmeans).
        cluster_centers_: Mean of the L2-normalised rows of each cluster.
        adaptation_: Whether the features are whitened and why (None without ``adapt``).
        threshold_: Cosine with the nearest centroid below which a row is in none of the categories.

    Examples:
        >>> X = np.array([[9.0, 1.0], [8.0, 1.0], [1.0, 7.0], [1.0, 9.0], [-5.0, -5.0], [-5.0, -6.0]])
        >>> model = SemiSupervisedDiscovery(n_classes=3, overrides=("clustering.readout=kmeans",))
        >>> model.fit(X, [5, -1, 7, -1, -1, -1]).labels_
        array([0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self,
        n_classes: int | Literal["auto"] = "auto",
        *,
        adapt: bool = False,
        overrides: tuple[str, ...] = (),
        random_state: int | None = None,
        device: str = "cpu",
        verbose: bool | int = False,
    ) -> None:
        self.n_classes = n_classes
        self.adapt = adapt
        self.overrides = overrides
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "SemiSupervisedDiscovery":
        """Learn the categories.

        Args:
            X: Features (rows x numbers); only their directions count.
            y: Labels of any type (rows); -1, None, NaN or an empty text = unlabelled.

        Returns:
            The estimator.
        """
        check_parameters(self)
        with _as_argument_error(ValueError, TypeError):
            X = validate_data(self, _dense(X), dtype=[np.float64, np.float32], ensure_min_samples=2)
            numbers, classes = _class_numbers(y, len(X))
        with _as_argument_error(PromptCALError):
            self._discover(X, numbers, classes)
        return self

    def _discover(self, X: np.ndarray, numbers: np.ndarray, classes: np.ndarray) -> None:
        rows = FeatureSet.of(X)
        images = ImageSet(rows.names, TextSource(rows.names), noun="row")
        problem = Problem(images, numbers, [str(name) for name in classes])
        settings = self._settings(rows.width)
        if self.n_classes != "auto":
            problem.check_number(settings.config().n_classes)
        session = Session(
            RunDirectory("."),  # nothing is written
            settings.draft(len(classes)),
            Console(stderr=True, quiet=not self.verbose),
        )
        found = discover(problem, rows.embeddings(), settings, session, adapt=self.adapt)
        outcome = found.outcome
        self.classes_ = classes
        self.assignments_ = outcome.assignments
        self.labels_ = outcome.assignments.clusters
        self.n_classes_ = len(outcome.assignments.names)
        self.confidence_ = outcome.assignments.confidence
        self.stability_ = outcome.assignments.stability
        self.cluster_centers_ = outcome.partition.centroids.numpy()
        self.temperature_ = outcome.calibration.temperature
        self.threshold_ = outcome.calibration.threshold
        self.adaptation_ = found.results.adaptation
        self.config_ = found.task.config
        self.network_ = found.task.network.cpu()
        self.partition_ = outcome.partition

    def _settings(self, width: int) -> Settings:
        named = {"n_classes": self.n_classes, "seed": self.random_state, "device": self.device}
        return Settings(feature_values(features_settings(width), named, self.overrides))

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Learn the categories, and return those of the rows.

        Args:
            X: Features (rows x numbers); only their directions count.
            y: Labels as in `fit`.

        Returns:
            The cluster of each row (rows).
        """
        return self.fit(X, y).labels_

    def predict(self, X: Any) -> np.ndarray:
        """Assign rows, also those that are in `none_of_these`.

        Args:
            X: Features (rows x numbers); only their directions count.

        Returns:
            The cluster of each row (rows).
        """
        return np.concatenate([clusters for _, clusters in self._scores(X)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The calibrated probability of each cluster.

        Args:
            X: Features (rows x numbers); only their directions count.

        Returns:
            Probabilities (rows x clusters); the largest is that of `predict`.
        """
        found = []
        for scores, clusters in self._scores(X):
            shares = torch.softmax(scores.double() / self.temperature_, dim=1)
            found.append(largest_at(shares, torch.from_numpy(clusters)).numpy())
        return np.concatenate(found)

    def transform(self, X: Any) -> np.ndarray:
        """Cosines with the centroids.

        Args:
            X: Features (rows x numbers); only their directions count.

        Returns:
            The cosine of each row with the centroid of each cluster (rows x clusters).
        """
        check_is_fitted(self)
        X = self._checked(X)
        centroids = torch.from_numpy(self.cluster_centers_)
        blocks = [centroid_cosines(block, centroids).numpy() for block in self._embed(X).split(BLOCK)]
        return np.concatenate(blocks).astype(X.dtype)

    def none_of_these(self, X: Any) -> np.ndarray:
        """Which rows are too far from all centroids to be in any of the categories.

        Args:
            X: Features (rows x numbers); only their directions count.

        Returns:
            Whether each row is (boolean, rows).
        """
        largest = self.transform(X).max(axis=1)
        return largest < (-np.inf if self.threshold_ is None else self.threshold_)

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def _checked(self, X: Any) -> np.ndarray:
        with _as_argument_error(ValueError, TypeError):
            return validate_data(self, _dense(X), dtype=[np.float64, np.float32], reset=False)

    def _embed(self, X: np.ndarray) -> torch.Tensor:
        with _as_argument_error(PromptCALError):
            return self.network_.embed(FeatureSet.of(X).embeddings())

    def _scores(self, X: Any) -> Any:
        """Scores and clusters, block by block."""
        check_is_fitted(self)
        embeddings = self._embed(self._checked(X))
        assignment = METHODS[OF_FEATURES](self.config_).assignment(self.network_)
        for block in embeddings.split(BLOCK):
            scores = assignment.scores(block, self.partition_)
            yield scores, assignment.choose(block, scores, self.partition_.centroids).numpy()


@contextmanager
def _as_argument_error(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds as an `ArgumentError`, which is a ValueError and a TypeError, as scikit-learn expects."""
    try:
        yield
    except kinds as error:
        raise error if isinstance(error, ArgumentError) else ArgumentError(error) from error


def _dense(values: Any) -> Any:
    """A tensor as an array, also if it has a gradient; anything else as it is."""
    return tensor_as_numpy("features and labels", values) if isinstance(values, torch.Tensor) else values


def _class_numbers(y: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The position of each label among the sorted classes, -1 for unlabelled rows, and the classes."""
    if y is None:
        return np.full(n, -1), np.array([], dtype=np.int64)
    y = column_or_1d(_dense(y), warn=True)
    if len(y) != n:
        check_consistent_length(y, np.empty(n))
    if y.dtype.kind == "O":
        labelled = np.array([value is not None and value == value and value not in (-1, "") for value in y])
    elif y.dtype.kind in "UST":
        labelled = (y != "") & (y != "-1")
    else:
        labelled = (y != -1) & (y == y)
    classes = np.unique(y[labelled])
    numbers = np.full(n, -1)
    numbers[labelled] = np.searchsorted(classes, y[labelled])
    return numbers, classes
