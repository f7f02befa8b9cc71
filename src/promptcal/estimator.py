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
    """Category discovery with `fit(images, labels)`, `predict`, `predict_proba`, `transform`, `save` and `load`.

    Images and labels are as `promptcal.fit` takes them (-1 = unlabelled). Clusters 0..n-1 are the known classes
    (`classes_`), the others are new; `names_` names them all. (A run that continues another one keeps its numbers.)
    `method` chooses another method than PromptCAL. The run directory is temporary unless `output` is given; then the
    report is written too, and the fitted estimator can be pickled while the directory exists.
    """

    def __init__(
        self,
        backbone: str | None = None,
        n_classes: int | Literal["auto"] | None = None,
        *,
        method: str | None = None,
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
        self.weights = weights
        self.config = config
        self.preset = preset
        self.overrides = overrides
        self.output = output
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, images: Any, labels: Any = None) -> "PromptCAL":
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
        """`fit`, then `labels_`."""
        return self.fit(images, labels).labels_

    def predict(self, images: Any) -> np.ndarray:
        """Cluster of each image, also of images that `promptcal.predict` puts into none of the categories."""
        check_is_fitted(self, "run_")
        return self.run_.predict(images, accept_all=True, progress=bool(self.verbose)).clusters

    def predict_proba(self, images: Any) -> np.ndarray:
        """Probability of each cluster (images x clusters). Rows add up to 1; the largest is that of `predict`."""
        check_is_fitted(self, "run_")
        return self.run_.predict_proba(images, progress=bool(self.verbose))

    def transform(self, images: Any) -> np.ndarray:
        """L2-normalised embeddings."""
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
        """Copy the run directory to ``path``, which must not exist yet."""
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

        It is as verbose as it was when it was saved, unless ``verbose`` is given.
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
