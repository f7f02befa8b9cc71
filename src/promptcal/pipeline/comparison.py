"""The first result against that of training, by held-out labels and by the stability of the clusters."""

from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from promptcal.config import Config
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.partition import nearest_centroids
from promptcal.methods import METHODS, without_training
from promptcal.methods.assignment import Assignment
from promptcal.pipeline.clustering import final_clustering
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.run.results import Comparison, ResultQuality, Scores
from promptcal.runtime.phases import COMPARISON
from promptcal.runtime.progress import working
from promptcal.runtime.seeds import derive_seed

_PARTS = 5  # random parts of the images that are clustered
_SHARE = 0.8  # of the images in each part
_LABELS_LIKE_STABILITY = 20  # held-out labels that the stability counts as much as


@dataclass(frozen=True)
class FirstResult:
    """Embeddings of the images by the frozen backbone, and the accuracy of the result, if the truth is known."""

    features: Tensor
    accuracy: Scores | None


def compare(prepared: Prepared, first: FirstResult, features: Tensor, session: Session) -> Comparison:
    """The first result against that of the trained network's ``features``. No hidden label is used."""
    config, without = prepared.config, without_training(prepared.config)
    assignments = [METHODS[c.method](c).assignment(prepared.network) for c in (without, config)]
    by_readout = all(assignment.trains_readout for assignment in assignments)
    frozen, trained = (
        measure(embeddings, prepared, assignment, session, by_readout=by_readout)
        for embeddings, assignment in zip((first.features, features), assignments, strict=True)
    )
    preferred: Literal["frozen", "trained"] = "frozen" if score(frozen) > score(trained) else "trained"
    kept = preferred if config.selection.keep == "better" else "trained"
    return Comparison(frozen=frozen, trained=trained, preferred=preferred, kept=kept)


def score(quality: ResultQuality) -> float:
    """The mean of both measures; the stability counts as much as 20 labels, because few labels prove little."""
    held_out = 0.0 if quality.held_out is None else quality.held_out
    weights = quality.n_held_out, _LABELS_LIKE_STABILITY
    return (weights[0] * held_out + weights[1] * quality.stability) / sum(weights)


def measure(
    features: Tensor, prepared: Task, assignment: Assignment, session: Session, *, by_readout: bool
) -> ResultQuality:
    """The quality of a result; the same images, parts and seeds for both results.

    A trained read-out is trained again, without the held-out labels. Its own stability is measured if both results have
    one (``by_readout``), otherwise that of k-means.
    """
    config, labels, held_out = prepared.config, prepared.training_labels, prepared.held_out
    clustering = final_clustering(config, session, unlabelled_weight=prepared.problem.unlabelled_weight)
    found = assignment.partition(features, labels, clustering)
    if by_readout and found.stability is not None:
        agreement = float(found.stability[labels < 0].mean())
    else:
        agreement = session.group.on_first(lambda: _kmeans_stability(features, labels, config, session))
    scored = held_out >= 0
    return ResultQuality(
        held_out=float((found.clusters[scored] == held_out[scored]).mean()) if scored.any() else None,
        n_held_out=int(scored.sum()),
        stability=agreement,
    )


def _kmeans_stability(features: Tensor, labels: np.ndarray, config: Config, session: Session) -> float:
    with session.clock.phase(COMPARISON, session.device), working(session.console, "comparing with the first result"):
        return stability(
            features,
            labels,
            config.n_classes,
            n_init=config.selection.n_init,
            max_images=config.selection.max_images,
            seed=derive_seed(config.seed, "stability"),
        )


def stability(
    features: Tensor, labels: np.ndarray, n_classes: int, *, n_init: int, max_images: int, seed: int
) -> float:
    """The mean adjusted Rand index of semi-supervised k-means on random parts of the images, two by two.

    Each part has all labelled images and a share of the unlabelled ones. Its centroids then assign all unlabelled
    images, and two parts agree if they put the same images together.
    """
    generator = np.random.default_rng(seed)
    unlabelled = generator.permutation(np.flatnonzero(labels < 0))[:max_images]
    labelled = np.flatnonzero(labels >= 0)
    size = max(round(_SHARE * len(unlabelled)), min(n_classes, len(unlabelled)))
    found = []
    for part in range(_PARTS):
        chosen = np.sort(np.concatenate([labelled, generator.choice(unlabelled, size, replace=False)]))
        kmeans = SemiSupervisedKMeans(n_classes, n_init, random_state=derive_seed(seed, "part", part))
        kmeans.fit(features[torch.from_numpy(chosen)], labels[chosen])
        centroids = torch.from_numpy(kmeans.cluster_centers_)
        found.append(nearest_centroids(features[torch.from_numpy(unlabelled)], centroids).cpu().numpy())
    return fmean(adjusted_rand_score(a, b) for a, b in combinations(found, 2))
