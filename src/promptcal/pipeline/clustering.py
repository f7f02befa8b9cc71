"""Embedding and clustering with a progress bar, as the config says."""

import numpy as np
import torch
from torch import Tensor

from promptcal.config import Config
from promptcal.data import StreamedView, View
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.methods.assignment import KMeansFit
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.pipeline.session import Session
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed


def embed_all(
    network: DiscoveryNetwork | PromptedViT, view: View | StreamedView, n_images: int, title: str, session: Session
) -> Tensor:
    """L2-normalised embeddings of the first ``n_images`` images of a view."""
    with progress_bar(session.console) as bar:
        task = bar.add_task(title, total=n_images, note="")
        return embed(
            network,
            view,
            torch.arange(n_images),
            on_progress=lambda done: bar.update(task, completed=done),
            group=session.group,
        )


def final_kmeans(
    config: Config,
    session: Session,
    repeat: int = 0,
    *,
    init: Tensor | None = None,
    restricted: tuple[np.ndarray, int] | None = None,
) -> KMeansFit:
    """k-means for results: many starts, with a progress bar, on the first process; each repeat has its own seed.

    ``init`` are the initial centroids of the first clusters; ``restricted``: see `SemiSupervisedKMeans.fit`.
    """
    settings = config.clustering
    purpose = ("kmeans", repeat) if repeat else ("kmeans",)

    def fit(features: Tensor, labels: np.ndarray | None) -> SemiSupervisedKMeans:
        kmeans = SemiSupervisedKMeans(
            config.n_classes,
            settings.n_init,
            settings.max_iter,
            settings.tol,
            random_state=derive_seed(config.seed, *purpose),
        )
        known = 0 if labels is None else len(np.unique(labels[labels >= 0]))
        known = known if init is None else len(init)
        starts = settings.n_init if known < config.n_classes else 1  # nothing is random then
        with progress_bar(session.console) as bar:
            task = bar.add_task("clustering", total=starts, note="")
            show = lambda done: bar.update(task, completed=done)  # noqa: E731
            return session.group.on_first(
                lambda: kmeans.fit(features, labels, init=init, restricted=restricted, on_progress=show)
            )

    return fit


def validation_kmeans(config: Config) -> KMeansFit:
    """k-means for validation: few starts, in the process that calls it."""
    settings = config.clustering

    def fit(features: Tensor, labels: np.ndarray | None) -> SemiSupervisedKMeans:
        seed = derive_seed(config.seed, "look", "kmeans")
        n_init = config.selection.n_init
        kmeans = SemiSupervisedKMeans(config.n_classes, n_init, settings.max_iter, settings.tol, random_state=seed)
        return kmeans.fit(features, labels)

    return fit
