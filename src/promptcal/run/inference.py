"""A finished run, ready to embed and assign images."""

import html
import math
import warnings
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from promptcal.data import ImageSet
from promptcal.discovery.calibration import Calibration
from promptcal.discovery.heads import LinearHead
from promptcal.discovery.partition import BLOCK, centroid_cosines, join_ranked, largest_at, rank_clusters
from promptcal.errors import ConfigError, PromptCALWarning, WeightsError
from promptcal.methods import METHODS, without_training
from promptcal.methods.assignment import Assignment
from promptcal.methods.base import Method
from promptcal.models import DiscoveryNetwork
from promptcal.models.tokens import read_tokens
from promptcal.run.assignments import Assignments
from promptcal.run.stored import StoredClusters, read_clusters, read_tensors
from promptcal.run.stored_run import StoredRun
from promptcal.run.summary import categories_table, picture
from promptcal.runtime.arguments import checked
from promptcal.runtime.device import choose_device, choose_dtype
from promptcal.runtime.json_model import damaged
from promptcal.training.embedding import embed_images


class ClusterScores(NamedTuple):
    """Scores (images x clusters), the cluster of each image, and its cosine with the nearest centroid."""

    scores: Tensor
    clusters: Tensor
    similarity: Tensor


class Run(StoredRun):
    """A run with a result. The network, centroids and calibration are loaded when they are first used.

    Args:
        path: Run directory.
        device: auto, cpu, cuda or mps; None: that of the fit.
        warn_if_unfinished: Whether to warn if training is not finished, so that this is the first result.

    Attributes:
        path: The run directory.
        config: The settings of the fit.
        method: The method of the result, which may be the first one.
        names: The name of each category.
        known: Whether each category is a class with labels.
        centroids: The mean embedding of each category (categories x dim).
    """

    @checked
    def __init__(
        self, path: str | PathLike[str], device: str | None = None, *, warn_if_unfinished: bool = True
    ) -> None:
        super().__init__(path, warn_if_unfinished=warn_if_unfinished)
        self.config = self.directory.config()
        self.device = choose_device(device or self.config.device)
        trained = self.info.n_trained_classes
        self.n_trained_classes: int = len(self.info.known_classes) if trained is None else trained
        used = without_training(self.config) if self.info.is_frozen else self.config
        self.method: Method[Any] = METHODS[used.method](used)

    def _repr_html_(self) -> str:
        method = html.escape(f"{self.method.title}: {self.path}")
        examples = picture(self.directory.sheets_folder / "overview.png")
        kept = "" if self.reason is None else f"<p>{html.escape(self.reason)}</p>"
        return f"<p><b>{method}</b></p>{kept}{categories_table(self.assignments())}{examples}"

    @property
    def title(self) -> str:
        """The method of the result."""
        unfinished = " (first result; training is not finished)" if self.is_first_result else ""
        return self.method.title + unfinished

    @property
    def reason(self) -> str | None:
        """Which of two results this is, and why; None if there is only one, or if training is not finished."""
        results = None if self.is_first_result else self.directory.results()
        return None if results is None else results.reason()

    @cached_property
    def network(self) -> DiscoveryNetwork:
        config_file = self.directory.config_file
        try:
            network = self.method.build(self.n_trained_classes, pretrained=False)
        except ConfigError as error:
            raise damaged(config_file, error) from error
        crop = network.smallest_side
        if self.info.resize < crop:
            raise damaged(self.directory.info_file, f"resize: {self.info.resize} is smaller than the crop ({crop})")
        try:
            network.load_state_dict(self.stored_weights())
        except RuntimeError as error:
            raise WeightsError(f"{self.directory.model_file} does not fit its config; fit again") from error
        network.set_compute_dtype(choose_dtype(self.config.precision, self.device))
        return network.to(self.device).eval()

    @cached_property
    def assignment(self) -> Assignment:
        return self.method.assignment(self.network)

    @property
    def centroids(self) -> Tensor:
        """The mean embedding of each category."""
        return self._clusters.centroids

    @property
    def columns(self) -> Tensor:
        """The network's output that stands for each category, if it has a classifier."""
        return self._clusters.columns

    @property
    def head(self) -> LinearHead | None:
        """The classifier of the trained read-out, if the run has one."""
        return self._clusters.head

    @cached_property
    def _clusters(self) -> StoredClusters:
        shape = (len(self.names), self.network.embedding_width)
        file = self._unchanged(self.directory.centroids_file)
        stored = read_clusters(file, *shape, has_head=self.assignment.trains_readout)
        head = None if stored.head is None else LinearHead(*(part.to(self.device) for part in stored.head))
        return StoredClusters(stored.centroids.to(self.device), stored.columns.to(self.device), head)

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.read(self.directory.calibration_file)

    def check_embeds_images(self) -> None:
        """Reject a run on features where images are to be embedded."""
        if not self.method.takes_images:
            raise ConfigError(
                f"{self.path} is a run on features, which embeds no images; give a run of `promptcal fit`"
            )

    def stored_weights(self) -> dict[str, Tensor]:
        return read_tensors(self.directory.model_file)

    @checked
    def embed(self, images: Any, *, skip_unreadable: bool = False, progress: bool = True) -> tuple[list[str], Tensor]:
        """Embed new images.

        Args:
            images: New images, as in `promptcal.fit`, or one image file; new features if the run is of features.
            skip_unreadable: Skip images that cannot be read instead of stopping.
            progress: Show progress.

        Returns:
            The names of the images (n), and their L2-normalised embeddings (n x dim).
        """
        console = Console(stderr=True, quiet=not progress)
        names, features = self.method.embed(
            self.network, images, resize=self.info.resize, skip_unreadable=skip_unreadable, console=console
        )
        return names, features.to(self.device)

    def embed_tokens(self, images: ImageSet, tokens: Sequence[str], *, progress: bool = True) -> Tensor:
        """L2-normalised embeddings of the tokens of `token_names` (images x tokens x dim)."""
        _, features = embed_images(
            self.network.vit,
            images,
            self.info.resize,
            skip_unreadable=False,
            console=Console(stderr=True, quiet=not progress),
            read=lambda vit, views: read_tokens(vit, views, tokens),
        )
        return features

    @checked
    def predict(
        self,
        images: Any,
        *,
        none_below: float | None = None,
        accept_all: bool = False,
        skip_unreadable: bool = False,
        progress: bool = True,
    ) -> Assignments:
        """The category of each new image, and whether it is similar enough to any category to be accepted.

        Args:
            images: New images, as in `promptcal.fit`, or one image file; new features if the run is of features.
            none_below: Cosine with the nearest centroid below which an image is in none of the categories; None: the
                run's own threshold.
            accept_all: Use no threshold.
            skip_unreadable: Skip images that cannot be read instead of stopping.
            progress: Show progress.

        Returns:
            The assignments, with ``similarity`` and ``accepted``.
        """
        threshold = self.threshold(none_below, accept_all)
        paths, features = self.embed(images, skip_unreadable=skip_unreadable, progress=progress)
        return self._assign(paths, features, threshold)

    def assign(self, paths: list[str], features: Tensor) -> Assignments:
        """The category of each new image by its embedding; all images are accepted."""
        return self._assign(paths, features, -math.inf)

    def _assign(self, paths: list[str], features: Tensor, threshold: float) -> Assignments:
        ranked, similarity = [], []
        for block in features.split(BLOCK):
            scores, clusters, of_block = self.scores(block)
            ranked.append(rank_clusters(torch.softmax(scores / self.calibration.temperature, dim=1), clusters))
            similarity.append(of_block.cpu().numpy())
        cosines = np.concatenate(similarity)
        return Assignments.of(
            paths,
            join_ranked(ranked),
            self.names,
            self.known,
            np.zeros(len(paths), dtype=bool),
            similarity=cosines,
            accepted=cosines >= threshold,
        )

    @checked
    def predict_proba(self, images: Any, *, progress: bool = True) -> np.ndarray:
        """The calibrated probability of each category.

        They hold for an image that is in one of the categories: "none of these" has no column, and `predict` says for
        which images it is the answer.

        Args:
            images: New images, as in `promptcal.fit`, or one image file; new features if the run is of features.
            progress: Show progress.

        Returns:
            Probabilities (images x categories, in the order of ``names``). Each row adds up to 1, and its largest value
            is that of the category which `predict` gives.
        """
        _, features = self.embed(images, progress=progress)
        scores, clusters, _ = self.scores(features)
        probabilities = torch.softmax(scores.double().cpu() / self.calibration.temperature, dim=1)
        return largest_at(probabilities, clusters.cpu()).numpy()

    def to_pandas(self) -> Any:
        """The category of each of the fit's images.

        Returns:
            A data frame with one row per image, as `Assignments.to_pandas`.
        """
        return self.assignments().to_pandas()

    def scores(self, features: Tensor) -> ClusterScores:
        scores = self.assignment.scores(features, self)
        clusters = self.assignment.choose(features, scores, self.centroids)
        return ClusterScores(scores, clusters, centroid_cosines(features, self.centroids).max(dim=1).values)

    def threshold(self, none_below: float | None, accept_all: bool) -> float:
        """The cosine with the nearest centroid below which an image is in none of the categories."""
        if none_below is not None and accept_all:
            raise ConfigError("--none-below sets a threshold and --accept-all removes it; give only one of them")
        if none_below is not None:
            if not -1 <= none_below <= 1:
                raise ConfigError(f"--none-below is a cosine, -1 to 1, not {none_below}")
            return none_below
        if not accept_all and self.calibration.threshold is None:
            warnings.warn(
                f"{self.path} has no threshold for 'none of these', so all images are accepted; "
                "give one as --none-below",
                PromptCALWarning,
                stacklevel=4,
            )
        return -math.inf if accept_all or self.calibration.threshold is None else self.calibration.threshold
