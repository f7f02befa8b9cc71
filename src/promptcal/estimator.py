"""A scikit-learn estimator."""

import shutil
import tempfile
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from promptcal import api
from promptcal.errors import RunError
from promptcal.run.inference import Run
from promptcal.run.summary import ShowsCategories
from promptcal.runtime import files
from promptcal.runtime.arguments import check_parameters, checked
from promptcal.runtime.json_model import JSONModel

_SAVED_FILE = "estimator.json"


class SavedEstimator(JSONModel):
    """`estimator.json`: parameters of a saved estimator that its run does not have."""

    verbose: bool


class PromptCAL(ShowsCategories, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Category discovery in images, as a scikit-learn estimator.

    Clusters 0..n-1 are the known classes, the others are new. (A run that continues another one keeps its numbers.)

    Args:
        backbone: timm name of a ViT; None: as in `promptcal.fit`.
        n_classes: Number of categories, known and new together; "auto": estimated.
        method: Name of another method than PromptCAL.
        quick: Train no network, only the read-out on the features of the backbone as it is: minutes on a CPU.
        allow_long: Train on a CPU even if it takes more than 30 minutes.
        weights: Local weight file for the backbone.
        config: YAML file of settings, or a `Config`, which is then the whole configuration.
        preset: Name of a preset, or a mapping of settings.
        overrides: Settings, such as ("affinity.k=10",).
        output: Run directory to write; then the report is written too, and the fitted estimator can be pickled while
            the directory exists. None: a temporary one.
        random_state: Seed; None is 0.
        device: auto, cpu, cuda or mps.
        verbose: Show progress.

    Attributes:
        labels_: Cluster of each image; labelled images keep that of their class.
        classes_: The known classes; class ``classes_[i]`` is cluster i.
        names_: The name of each cluster.
        cluster_centers_: Mean embedding of each cluster (clusters x dim).
        assignments_: The `Assignments`, with confidence and stability.
        run_: The `Run`.
    """

    def __init__(
        self,
        backbone: str | None = None,
        n_classes: int | Literal["auto"] | None = None,
        *,
        method: str | None = None,
        quick: bool = False,
        allow_long: bool = False,
        weights: str | PathLike[str] | None = None,
        config: Any = None,
        preset: Any = None,
        overrides: tuple[str, ...] = (),
        output: str | PathLike[str] | None = None,
        random_state: int | None = None,
        device: str | None = None,
        verbose: bool | int = True,
    ) -> None:
        self.backbone = backbone
        self.n_classes = n_classes
        self.method = method
        self.quick = quick
        self.allow_long = allow_long
        self.weights = weights
        self.config = config
        self.preset = preset
        self.overrides = overrides
        self.output = output
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, images: Any, labels: Any = None) -> "PromptCAL":
        """Learn the categories.

        Args:
            images: As in `promptcal.fit`.
            labels: As in `promptcal.fit`; -1 = unlabelled.

        Returns:
            The estimator.
        """
        check_parameters(self)
        options = self.get_params(deep=False)
        options |= {"seed": options.pop("random_state"), "progress": bool(options.pop("verbose"))}
        options |= {"output": self.output or self._temporary_folder(), "report": self.output is not None}
        return self._load_results(api.fit(images=images, labels=labels, **options))

    def _temporary_folder(self) -> str:
        """A folder that is removed together with the estimator."""
        self.temporary_folder_ = tempfile.TemporaryDirectory(prefix="promptcal-")
        return self.temporary_folder_.name

    def fit_predict(self, images: Any, labels: Any = None) -> np.ndarray:
        """Learn the categories, and return those of the images.

        Args:
            images: As in `promptcal.fit`.
            labels: As in `promptcal.fit`; -1 = unlabelled.

        Returns:
            The cluster of each image (n).
        """
        return self.fit(images, labels).labels_

    def predict(self, images: Any) -> np.ndarray:
        """Assign new images, also those that `promptcal.predict` puts into none of the categories.

        Args:
            images: As in `fit`.

        Returns:
            The cluster of each image (n).
        """
        check_is_fitted(self, "run_")
        return self.run_.predict(images, accept_all=True, progress=bool(self.verbose)).clusters

    def predict_proba(self, images: Any) -> np.ndarray:
        """The calibrated probability of each cluster.

        Args:
            images: As in `fit`.

        Returns:
            Probabilities (n x clusters). Rows add up to 1; the largest is that of `predict`.
        """
        check_is_fitted(self, "run_")
        return self.run_.predict_proba(images, progress=bool(self.verbose))

    def transform(self, images: Any) -> np.ndarray:
        """Embed images.

        Args:
            images: As in `fit`.

        Returns:
            L2-normalised embeddings (n x dim).
        """
        check_is_fitted(self, "run_")
        return self.run_.embed(images, progress=bool(self.verbose))[1].cpu().numpy()

    @property
    def _n_features_out(self) -> int:
        return self.cluster_centers_.shape[1]

    def __getstate__(self) -> dict[str, Any]:
        if "temporary_folder_" in self.__dict__:
            raise RunError(
                "this estimator's run is in a temporary folder, which a pickle cannot hold; use save and load"
            )
        return {key: value for key, value in super().__getstate__().items() if key != "run_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "labels_" in state:
            self.run_ = Run(state["output"], state["device"])

    @checked
    def save(self, path: str | PathLike[str]) -> None:
        """Copy the run directory.

        Args:
            path: Folder to write, which must not exist yet.
        """
        check_is_fitted(self, "run_")
        if Path(path).exists():
            raise RunError(f"{path} exists already; choose another place to save to")
        if not Path(path).absolute().parent.is_dir():
            raise RunError(f"the folder of {path} does not exist; create it first")
        files.write_folder(Path(path), self._copy_run)

    def _copy_run(self, folder: Path) -> None:
        shutil.copytree(self.run_.path, folder, dirs_exist_ok=True)
        SavedEstimator(verbose=bool(self.verbose)).write(folder / _SAVED_FILE)

    @classmethod
    @checked
    def load(
        cls, path: str | PathLike[str], device: str | None = None, *, verbose: bool | int | None = None
    ) -> "PromptCAL":
        """An estimator from a run directory, whether saved by `save` or written by `promptcal fit`.

        Args:
            path: The run directory.
            device: auto, cpu, cuda or mps; None: that of the fit.
            verbose: Show progress; None: as when it was saved.

        Returns:
            The fitted estimator.
        """
        run = Run(path, device)
        config, saved = run.config, run.path / _SAVED_FILE
        if verbose is None:
            verbose = SavedEstimator.read(saved).verbose if saved.is_file() else True
        estimator = cls(
            config.model.backbone,
            config.n_classes,
            config=config,
            random_state=config.seed,
            device=device,
            verbose=verbose,
        )
        return estimator._load_results(run)

    def _load_results(self, run: Run) -> "PromptCAL":
        self.run_ = run
        self.assignments_ = run.assignments()
        self.labels_ = self.assignments_.clusters
        self.classes_ = np.array(run.info.known_classes)
        self.names_ = np.array(run.names)
        self.cluster_centers_ = run.centroids.cpu().numpy()
        return self
