"""The first result against that of training, by held-out labels and by the stability of the clusters.

A fit that continues a previous run begins with given clusters, so there is no stability. Held-out labels decide alone.
If the previous network was trained, the result of more training must be clearly better: a round of labels must not make
the categories worse. The images with held-out labels begin in no category, because the previous categories of labelled
images are their labels.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from promptcal.config import Config
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.partition import nearest_centroids
from promptcal.pipeline.continuation import is_clearly_better
from promptcal.pipeline.final_partition import final_partition
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
    """How the first result is made, the embeddings of the images for it, and its accuracy, if the truth is known.

    ``stabilities`` are those of the images by the trained read-out, if there is one; unknown in a resumed run.
    """

    task: Prepared
    features: Tensor
    accuracy: Scores | None
    stabilities: np.ndarray | None


class Measured(NamedTuple):
    """The quality of a result, and of each held-out label whether the result has it right."""

    quality: ResultQuality
    right: np.ndarray


def compare(
    prepared: Prepared, first: FirstResult, features: Tensor, stabilities: np.ndarray | None, session: Session
) -> Comparison:
    """The first result against that of the trained network's ``features``. No hidden label is used.

    ``stabilities`` are those of the images in the result of training.
    """
    tasks = (first.task, prepared)
    by_readout = all(task.method.assignment(task.network).trains_readout for task in tasks)
    before, trained = (
        measure(embeddings, replace(task, held_out=prepared.held_out), of_result, session, by_readout=by_readout)
        for embeddings, task, of_result in zip(
            (first.features, features), tasks, (first.stabilities, stabilities), strict=True
        )
    )
    prefers_training = is_preferred(trained, before, was_trained=prepared.is_continued)
    preferred: Literal["first", "trained"] = "trained" if prefers_training else "first"
    kept = preferred if prepared.config.selection.keep == "better" else "trained"
    return Comparison(first=before.quality, trained=trained.quality, preferred=preferred, kept=kept)


def is_preferred(trained: Measured, first: Measured, *, was_trained: bool) -> bool:
    """Whether the result of training is the better one. A new fit with equal measures trusts training.

    ``was_trained``: training continued a trained network, so it must be right on clearly more of the held-out labels.
    """
    after, before = trained.quality.stability, first.quality.stability
    if after is not None and before is not None:
        return score(trained.quality, after) >= score(first.quality, before)
    if was_trained:
        return is_clearly_better(trained.right, first.right)
    return bool(trained.right.sum() > first.right.sum())


def score(quality: ResultQuality, stability: float) -> float:
    """The mean of both measures; the stability counts as much as 20 labels, because few labels prove little."""
    held_out = 0.0 if quality.held_out is None else quality.held_out
    weights = quality.n_held_out, _LABELS_LIKE_STABILITY
    return (weights[0] * held_out + weights[1] * stability) / sum(weights)


def measure(
    features: Tensor, task: Task, stabilities: np.ndarray | None, session: Session, *, by_readout: bool
) -> Measured:
    """How good a result is; the same images, parts and seeds for both results.

    The clusters are found again, without the held-out labels; if there are none, the given ``stabilities`` hold.
    They are used if both results have a trained read-out (``by_readout``); otherwise the stability is that of k-means.
    """
    held_out, labels = task.held_out, task.training_labels
    scored, right = held_out >= 0, np.zeros(0, dtype=bool)
    if scored.any() or (by_readout and stabilities is None):
        names = [task.problem.images.names[i] for i in np.flatnonzero(scored)]
        problem = replace(task.problem, labels=labels)
        hidden = replace(task, problem=problem, released=frozenset(task.released).union(names))
        found = final_partition(hidden, task.method.assignment(task.network), features, session).partition
        right = found.clusters[scored] == held_out[scored]
        stabilities = found.stability
    agreement = None
    if task.previous is None and by_readout and stabilities is not None:
        agreement = float(stabilities[labels < 0].mean())
    elif task.previous is None:
        agreement = session.group.on_first(lambda: _kmeans_stability(features, labels, task.config, session))
    accuracy = float(right.mean()) if len(right) else None
    return Measured(ResultQuality(held_out=accuracy, n_held_out=len(right), stability=agreement), right)


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
