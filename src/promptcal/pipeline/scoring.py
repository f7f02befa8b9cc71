"""Accuracy of a network under the problem's protocol: on the unlabelled images, or on the test images."""

from promptcal.methods.assignment import Assignment, KMeansAssignment
from promptcal.metrics import discovery_accuracy
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.pipeline.class_estimate import frozen_vit
from promptcal.pipeline.clustering import embed_all, final_kmeans
from promptcal.pipeline.prepare import Prepared, TestImages
from promptcal.pipeline.session import Session
from promptcal.run.results import Scores


def score_frozen(prepared: Prepared, session: Session) -> dict[str, Scores]:
    """Baselines: the pretrained backbone with k-means, with and without labels."""
    config, problem = prepared.config, prepared.problem
    plain = frozen_vit(prepared.network.vit, config.model.train_blocks)
    if prepared.test is not None:  # test images have no labels to give to k-means
        unsupervised = KMeansAssignment(config.loss.affinity_temperature, use_labels=False)
        return {"kmeans": _score_test(prepared, prepared.test, plain, unsupervised, "frozen test features", session)}
    features = embed_all(plain, prepared.view, len(problem.images), "frozen features", session)
    kmeans = final_kmeans(config, session)
    clusters = {
        "kmeans": kmeans(features, None).labels_,
        "semi_supervised_kmeans": kmeans(features, problem.labels).labels_,
    }
    return {name: Scores.of(problem.score(found)) for name, found in clusters.items()}


def score_network(prepared: Prepared, title: str, session: Session) -> Scores:
    """The network with its present weights, clustered as its method does."""
    network, problem = prepared.network, prepared.problem
    assignment = prepared.method.assignment(network)
    if prepared.test is not None:
        return _score_test(prepared, prepared.test, network, assignment, title, session)
    features = embed_all(network, prepared.view, len(problem.images), title, session)
    partition = assignment.partition(features, problem.labels, final_kmeans(prepared.config, session))
    return Scores.of(problem.score(partition.clusters))


def _score_test(
    prepared: Prepared,
    test: TestImages,
    network: DiscoveryNetwork | PromptedViT,
    assignment: Assignment,
    title: str,
    session: Session,
) -> Scores:
    features = embed_all(network, test.view, len(test.truth), title, session)
    clusters = assignment.clusters(features, None, final_kmeans(prepared.config, session))
    return Scores.of(discovery_accuracy(test.truth, clusters, prepared.problem.classes))
