"""Accuracy of a network under the problem's protocol: on the unlabelled images, or on the test images."""

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from promptcal.methods.assignment import Assignment, Clustering, KMeansAssignment
from promptcal.metrics import discovery_accuracy
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.pipeline.class_estimate import frozen_vit
from promptcal.pipeline.clustering import embed_all, final_clustering
from promptcal.pipeline.final_partition import final_partition
from promptcal.pipeline.prepare import Prepared
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task, TestImages
from promptcal.run.results import Scores


def frozen_features(prepared: Prepared, session: Session) -> Tensor:
    """The embeddings by the pretrained backbone without prompts. The network must not be trained yet."""
    if prepared.frozen_features is not None:
        return prepared.frozen_features
    plain = frozen_vit(prepared.network.vit, prepared.config, session.device)
    return embed_all(plain, prepared.view, len(prepared.problem.images), "frozen features", session)


def score_frozen(
    prepared: Prepared, session: Session, features: Tensor | None = None, semi_supervised: Scores | None = None
) -> dict[str, Scores]:
    """Baselines: the pretrained backbone with k-means, with and without labels.

    ``features`` and the scores ``semi_supervised`` are given if they are known already.
    """
    config, problem = prepared.config, prepared.problem
    assignment = KMeansAssignment(config.loss.affinity_temperature, use_labels=False)
    if prepared.test is not None:  # test images have no labels to give to k-means
        plain = frozen_vit(prepared.network.vit, config, session.device)
        return {"kmeans": score_test(prepared, prepared.test, plain, assignment, "frozen test features", session)}
    features = frozen_features(prepared, session) if features is None else features

    def score(labels: np.ndarray | None) -> Scores:
        repeats = _clusters_by_repeat(
            prepared, assignment, lambda found: assignment.clusters(features, labels, found.kmeans), session
        )
        return Scores.of_repeats([problem.score(found) for found in repeats])

    return {"kmeans": score(None), "semi_supervised_kmeans": semi_supervised or score(problem.labels)}


def score_network(prepared: Prepared, title: str, session: Session) -> Scores:
    """The network with its present weights, clustered as its method does."""
    network, problem = prepared.network, prepared.problem
    assignment = prepared.method.assignment(network)
    if prepared.test is not None:
        return score_test(prepared, prepared.test, network, assignment, title, session)
    features = embed_all(network, prepared.view, len(problem.images), title, session)
    return score_unlabelled(prepared, assignment, features, session)


def score_unlabelled(
    prepared: Task, assignment: Assignment, features: Tensor, session: Session, first: np.ndarray | None = None
) -> Scores:
    """The unlabelled images with each seed of k-means; ``first`` are their clusters with the first seed, if known."""
    problem = prepared.problem
    if prepared.previous is not None:  # it starts where the previous run ended, so no seed changes it
        if first is None:
            first = final_partition(prepared, assignment, features, session).partition.clusters
        return Scores.of_repeats([problem.score(first)])

    def clusters(clustering: Clustering) -> np.ndarray:
        return assignment.partition(features, problem.labels, clustering).clusters

    repeats = _clusters_by_repeat(prepared, assignment, clusters, session, first)
    return Scores.of_repeats([problem.score(found) for found in repeats])


def _clusters_by_repeat(
    prepared: Task,
    assignment: Assignment,
    clusters: Callable[[Clustering], np.ndarray],
    session: Session,
    first: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """The clusters with each seed of k-means; once if the assignment does not use k-means."""
    repeats = prepared.config.clustering.repeats if assignment.uses_kmeans else 1
    for repeat in range(repeats):
        if repeat == 0 and first is not None:
            yield first
        else:
            weight = prepared.problem.unlabelled_weight
            yield clusters(final_clustering(prepared.config, session, repeat, unlabelled_weight=weight))


def score_test(
    prepared: Task,
    test: TestImages,
    network: DiscoveryNetwork | PromptedViT,
    assignment: Assignment,
    title: str,
    session: Session,
) -> Scores:
    """The test images, clustered without labels."""
    features = embed_all(network, test.view, len(test.truth), title, session)
    repeats = _clusters_by_repeat(
        prepared, assignment, lambda found: assignment.clusters(features, None, found.kmeans), session
    )
    return Scores.of_repeats([discovery_accuracy(test.truth, found, prepared.problem.classes) for found in repeats])
