"""Embedding and clustering with a progress bar, as the config says."""

import numpy as np
import torch
from torch import Tensor

from promptcal.config import Config
from promptcal.data import StreamedView, View
from promptcal.data.class_sizes import are_imbalanced
from promptcal.discovery.heads import HEADS, STEPS, TrainedHeads, estimated_sizes, train_heads
from promptcal.discovery.kmeans import Limits, SemiSupervisedKMeans
from promptcal.methods.assignment import Clustering, KMeansFit
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.pipeline.session import Session
from promptcal.runtime.phases import CLUSTERING, EMBEDDING, READ_OUT
from promptcal.runtime.progress import show_progress
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed


def embed_all(
    network: DiscoveryNetwork | PromptedViT, view: View | StreamedView, n_images: int, title: str, session: Session
) -> Tensor:
    """L2-normalised embeddings of the first ``n_images`` images of a view."""
    with session.clock.phase(EMBEDDING, session.device), show_progress(session.console, title, n_images) as show:
        return embed(network, view, torch.arange(n_images), on_progress=show, group=session.group)


def final_clustering(
    config: Config,
    session: Session,
    repeat: int = 0,
    *,
    init: Tensor | None = None,
    limits: Limits | None = None,
    unlabelled_weight: float = 1.0,
) -> Clustering:
    """Clustering for results, with progress bars, on the first process; each repeat has its own seed.

    k-means keeps the best of many starts. Heads are trained from a few starts, one each. ``init`` are the initial
    centroids of the first clusters, those of a continued run. Its only head stays close to its start and expects the
    sizes that the categories have there. ``unlabelled_weight``: see `Problem`.
    """
    settings = config.clustering
    purpose = ("kmeans", repeat) if repeat else ("kmeans",)

    def search(features: Tensor, labels: np.ndarray | None, n_init: int, n_kept: int) -> SemiSupervisedKMeans:
        estimator = SemiSupervisedKMeans(
            config.n_classes,
            n_init,
            settings.max_iter,
            settings.tol,
            random_state=derive_seed(config.seed, *purpose),
            n_kept=n_kept,
            max_points_per_cluster=settings.max_points_per_cluster,
        )
        known = 0 if labels is None else len(np.unique(labels[labels >= 0]))
        known = known if init is None else len(init)
        starts = n_init if known < config.n_classes else 1  # nothing is random then
        with (
            session.clock.phase(CLUSTERING, session.device),
            show_progress(session.console, "clustering", starts) as show,
        ):
            return session.group.on_first(
                lambda: estimator.fit(features, labels, init=init, limits=limits, on_progress=show)
            )

    def kmeans(features: Tensor, labels: np.ndarray | None) -> SemiSupervisedKMeans:
        return search(features, labels, settings.n_init, n_kept=1)

    def heads(features: Tensor, labels: np.ndarray) -> TrainedHeads:
        is_new = init is None
        fitted = search(features, labels, HEADS, n_kept=HEADS) if is_new else kmeans(features, labels)
        starts = torch.from_numpy(fitted.kept_centers_)
        sizes = estimated_sizes(fitted.labels_, config.n_classes, np.where(labels < 0, unlabelled_weight, 1.0))
        prior = cluster_prior(config, sizes, labels) if is_new else sizes
        progress = show_progress(session.console, "training the read-out", STEPS)
        with session.clock.phase(READ_OUT, session.device), progress as show:
            seed = derive_seed(config.seed, "heads", repeat)
            closed = None if limits is None else limits.closed
            return session.group.on_first(
                lambda: train_heads(
                    features,
                    labels,
                    starts,
                    prior=prior,
                    seed=seed,
                    annealed=is_new,
                    closed=closed,
                    unlabelled_weight=unlabelled_weight,
                    on_progress=show,
                )
            )

    return Clustering(kmeans, heads)


def cluster_prior(config: Config, estimated: Tensor, labels: np.ndarray) -> Tensor | None:
    """The expected share of each cluster, as the config says; ``estimated`` are the shares that k-means found."""
    prior = config.clustering.prior
    if prior == "auto":
        prior = "none" if are_imbalanced(np.bincount(labels[labels >= 0])) else "balanced"
    if prior == "none":
        return None
    return estimated if prior == "estimated" else torch.full_like(estimated, 1 / len(estimated))


def validation_kmeans(config: Config) -> KMeansFit:
    """k-means for validation: few starts, in the process that calls it."""
    settings = config.clustering

    def fit(features: Tensor, labels: np.ndarray | None) -> SemiSupervisedKMeans:
        seed = derive_seed(config.seed, "look", "kmeans")
        n_init = config.selection.n_init
        kmeans = SemiSupervisedKMeans(config.n_classes, n_init, settings.max_iter, settings.tol, random_state=seed)
        return kmeans.fit(features, labels)

    return fit
