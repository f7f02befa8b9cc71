"""A finished run, ready to embed and assign images."""

import html
import math
import warnings
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from promptcal.data import ImageSet
from promptcal.data.decoding import is_image
from promptcal.data.sources import FileSource
from promptcal.discovery.calibration import Calibration
from promptcal.discovery.heads import LinearHead
from promptcal.discovery.partition import BLOCK, centroid_cosines, join_ranked, largest_at, rank_clusters
from promptcal.errors import ConfigError, DataError, PromptCALWarning, RunError, WeightsError
from promptcal.methods import METHODS, without_training
from promptcal.methods.assignment import Assignment
from promptcal.methods.base import Method
from promptcal.models import DiscoveryNetwork
from promptcal.models.tokens import read_tokens
from promptcal.run.assignments import Assignments, as_text, read_csv_rows
from promptcal.run.directory import RunDirectory
from promptcal.run.epoch_records import read_records
from promptcal.run.replacing import finish_replacing
from promptcal.run.stored import StoredClusters, read_clusters, read_embeddings, read_tensors
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


class Run:
    """A run with a result. ``config`` is that of the fit, ``method`` that of the result, which may be the first one.

    The network, centroids and calibration are loaded when they are first used.
    """

    @checked
    def __init__(
        self, path: str | PathLike[str], device: str | None = None, *, warn_if_unfinished: bool = True
    ) -> None:
        self.directory = RunDirectory(path)
        finish_replacing(self.directory)
        self.info = self.directory.info()
        if not self.info.has_result:
            raise RunError(f"the run in {path} is not finished; run its fit again with --resume")
        if self.info.status == "training" and warn_if_unfinished:
            warnings.warn(
                f"the training of {path} is not finished, so this is its first result, of the frozen backbone; "
                "let its fit end, or run it again with --resume",
                PromptCALWarning,
                stacklevel=3,
            )
        self.directory.check_links()
        self.config = self.directory.config()
        self.device = choose_device(device or self.config.device)
        self.names: list[str] = self.info.categories
        trained = self.info.n_trained_classes
        self.n_trained_classes: int = len(self.info.known_classes) if trained is None else trained
        self.known: list[bool] = [name in set(self.info.known_classes) for name in self.names]
        used = without_training(self.config) if self.info.is_first else self.config
        self.method: Method[Any] = METHODS[used.method](used)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.info.n_images} images, {self._categories})"

    def _repr_html_(self) -> str:
        method = html.escape(f"{self.method.title}: {self.path}")
        examples = picture(self.directory.sheets_folder / "overview.png")
        return f"<p><b>{method}</b></p>{categories_table(self.assignments())}{examples}"

    @property
    def _categories(self) -> str:
        return f"{sum(self.known)} known and {len(self.known) - sum(self.known)} new categories"

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def title(self) -> str:
        """The method of the result."""
        unfinished = " (first result; training is not finished)" if self.info.status == "training" else ""
        return self.method.title + unfinished

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
        stored = read_clusters(self.directory.centroids_file, *shape, has_head=self.assignment.trains_readout)
        head = None if stored.head is None else LinearHead(*(part.to(self.device) for part in stored.head))
        return StoredClusters(stored.centroids.to(self.device), stored.columns.to(self.device), head)

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.read(self.directory.calibration_file)

    def stored_weights(self) -> dict[str, Tensor]:
        return read_tensors(self.directory.model_file)

    def records(self) -> list[dict[str, Any]]:
        """The epochs of `metrics.jsonl`."""
        return read_records(self.directory.metrics_file)

    def assignments(self) -> Assignments:
        """What the fit assigned to its own images."""
        return Assignments.read_csv(self._unchanged(self.directory.assignments_file), self.names, self.known)

    def _unchanged(self, file: Path) -> Path:
        try:
            self.directory.verify_checksum(file)
        except OSError as error:
            raise RunError(f"{file} cannot be read ({error}); fit again") from error
        return file

    def embeddings(self) -> np.ndarray:
        """The embeddings of the fit's own images in the order of the assignments (float32)."""
        return read_embeddings(self._unchanged(self.directory.embeddings_file), len(self.assignments()))

    def truth(self) -> list[str | None] | None:
        """The true class of each image in the order of the assignments, if the truth was given."""
        file = self.directory.truth_file
        if not file.is_file():
            return None
        try:
            by_path = {as_text(row["path"]): as_text(row["label"]) for row in read_csv_rows(file, "path", "label")}
        except TypeError as error:
            raise damaged(file, error) from error
        return [by_path.get(path) for path in self.assignments().paths]

    @checked
    def embed(self, images: Any, *, skip_unreadable: bool = False, progress: bool = True) -> tuple[list[str], Tensor]:
        """Names and L2-normalised embeddings of new images, or of new features if the run is of features."""
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
        """The category of each new image, and whether it is similar enough to any category to be accepted."""
        threshold = self._threshold(none_below, accept_all)
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
        """The probability of each category (images x categories, in the order of ``names``); each row adds up to 1.

        Probabilities are calibrated like the confidences of `predict`, and the largest one is that of the category
        which `predict` gives. They hold for an image that is in one of the categories: "none of these" has no
        column, and `predict` says for which images it is the answer.
        """
        _, features = self.embed(images, progress=progress)
        scores, clusters, _ = self.scores(features)
        probabilities = torch.softmax(scores.double().cpu() / self.calibration.temperature, dim=1)
        return largest_at(probabilities, clusters.cpu()).numpy()

    def to_pandas(self) -> Any:
        """The category of each of the fit's images, as `Assignments.to_pandas`."""
        return self.assignments().to_pandas()

    def scores(self, features: Tensor) -> ClusterScores:
        scores = self.assignment.scores(features, self)
        clusters = self.assignment.choose(features, scores, self.centroids)
        return ClusterScores(scores, clusters, centroid_cosines(features, self.centroids).max(dim=1).values)

    def _threshold(self, none_below: float | None, accept_all: bool) -> float:
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

    def given_images(self) -> tuple[ImageSet, list[int]]:
        """The names of all images that the fit was given, and the positions among them of those it assigned."""
        names = list(self.assignments().paths)
        skipped: list[int] = []
        file = self.directory.skipped_file
        if file.exists():
            try:
                for row in read_csv_rows(file, "path", "position"):  # sorted by position
                    skipped.append(int(row["position"]))
                    if not 0 <= skipped[-1] <= len(names):
                        raise ValueError(f"the position {skipped[-1]}")
                    names.insert(skipped[-1], as_text(row["path"]))
            except (ValueError, TypeError) as error:
                raise damaged(file, error) from error
        left_out = set(skipped)
        assigned = [i for i in range(len(names)) if i not in left_out]
        return ImageSet(names, FileSource([]), None if self.info.root is None else Path(self.info.root)), assigned

    def image_files(self) -> list[Path]:
        """The file of each image, in the order of the assignments."""
        names = self.assignments().paths
        if self.info.folder is None:
            raise DataError(
                f"the images of {self.path} are not files (but an array, a dataset or an archive), so none can be "
                "linked or copied; export to csv, or save them as files and fit those"
            )
        if self.info.root is not None:
            reject_path_traversal(names, self.path)
        images = [Path(self.info.folder) / name for name in names]
        missing = [image for image in images if not image.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more images do" if len(missing) > 1 else " does"
            raise DataError(f"{missing[0]}{more} not exist any more; restore the images where the fit found them")
        other = next((image for image in images if not is_image(image)), None)
        if other is not None:  # a run directory from somebody else could name any file of this machine
            raise DataError(f"{other} is not an image; restore the images where the fit found them")
        return images


def reject_path_traversal(names: Sequence[str], run: Path) -> None:
    """Of images in a folder: no name may point outside of it."""
    for name in names:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise RunError(f"{run} names the image {name}, which lies outside of its image folder; do not trust it")
