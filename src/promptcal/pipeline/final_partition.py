"""The final clusters of a run: by its method, and for a continued run from the categories of the previous one."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.kmeans import Limits
from promptcal.discovery.partition import Partition
from promptcal.methods.assignment import Assignment, KMeansAssignment
from promptcal.pipeline.clustering import final_clustering
from promptcal.pipeline.continuation import Continuation, classified_right, inertia, is_clearly_better
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.run.changes import CategoryLoss


class FinalPartition(NamedTuple):
    """The clusters, and the confirmed categories of the previous run that lose images."""

    partition: Partition
    losses: list[CategoryLoss]


def final_partition(prepared: Task, assignment: Assignment, features: Tensor, session: Session) -> FinalPartition:
    """Every image in a cluster, known classes first."""
    problem, config = prepared.problem, prepared.config
    if prepared.previous is None:
        clustering = final_clustering(config, session, unlabelled_weight=problem.unlabelled_weight)
        return FinalPartition(assignment.partition(features, problem.labels, clustering), [])
    previous, released = prepared.previous, prepared.released

    def continuation(keep: bool) -> Continuation:
        trained = bool(prepared.stages)
        return previous.continuation(problem, features, released, config.n_classes, keep=keep, trained=trained)

    found = continuation(prepared.keep_confirmed)
    free = continuation(False) if found.keep else found  # images that are kept and would have moved are reported
    partition = _continued(free, problem.labels, prepared, assignment, features, session)
    losses = found.losses(partition.clusters, problem.labels, problem.classes)
    if found.keep:
        fixed = found.fixed(problem.labels)
        partition = _continued(found, fixed, prepared, assignment, features, session)
    return FinalPartition(partition, losses)


def _continued(
    found: Continuation,
    fixed: np.ndarray,
    prepared: Task,
    assignment: Assignment,
    features: Tensor,
    session: Session,
) -> Partition:
    """Clusters that start at the previous members, or at the labelled images if these are clearly better.

    Images in ``fixed`` do not move.

    A start from the labelled images finds a class that was hidden in another category. But a few labels can lie
    anywhere, so it must have a lower inertia and classify labelled images better (`is_clearly_better`).
    """
    labels, n_known = prepared.problem.labels, len(prepared.problem.classes)
    limits = Limits(torch.from_numpy(found.confirmed), n_known, torch.from_numpy(found.closed))

    def partition(by: Assignment, init: Tensor | None) -> Partition:
        weight = prepared.problem.unlabelled_weight
        clustering = final_clustering(prepared.config, session, init=init, limits=limits, unlabelled_weight=weight)
        return found.holding(by.partition(features, fixed, clustering), n_known)

    if not assignment.uses_kmeans:
        return partition(assignment, None)
    members, by_label = found.starts(features, labels)
    kmeans = KMeansAssignment(prepared.config.loss.affinity_temperature)
    from_members, from_labels = (partition(kmeans, init) for init in (members, by_label))
    if inertia(features, from_labels) < inertia(features, from_members):
        right = [classified_right(features, candidate, labels) for candidate in (from_members, from_labels)]
        if is_clearly_better(right[1], right[0]):
            return partition(assignment, by_label)
    return partition(assignment, members)
