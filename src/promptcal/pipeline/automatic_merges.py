"""After a fit with an estimated number of classes: clusters that cannot be told apart are merged.

Training starts at the upper end of the interval, so some clusters are parts of one category. The classes with labels
say how strongly two categories are connected, and the halves of one (`promptcal.discovery.links`).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from promptcal.discovery.links import measure_connections
from promptcal.discovery.merging import ClusterMerge, merge_indistinguishable
from promptcal.discovery.partition import Partition
from promptcal.methods.assignment import Assignment
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.runtime.phases import CLUSTERING
from promptcal.runtime.progress import progress_bar


class JoinedClusters(NamedTuple):
    """A merge, the number of the cluster that it was merged into, and how many images joined it."""

    merge: ClusterMerge
    into: int
    images: int


class MergedPartition(NamedTuple):
    """The clusters after merging; ``merges`` is None if nothing is to be merged automatically."""

    partition: Partition
    merges: list[JoinedClusters] | None


def merge_clusters(
    prepared: Task, assignment: Assignment, features: Tensor, partition: Partition, session: Session
) -> MergedPartition:
    """Merge discovered clusters, but not below the lower end of the interval.

    Discovered clusters are not merged into known classes; the report suggests that. A classifier has an output for each
    category, so its clusters are not merged.
    """
    interval = prepared.count_interval
    if interval is None or prepared.previous is not None or not assignment.uses_kmeans:
        return MergedPartition(partition, None)
    n_clusters, n_known = len(partition.centroids), len(prepared.problem.classes)
    with session.clock.phase(CLUSTERING, session.device), progress_bar(session.console) as bar:
        task = bar.add_task("comparing clusters", total=n_clusters, note="")
        show = lambda done: bar.update(task, completed=done)  # noqa: E731
        merges = session.group.on_first(
            lambda: merge_indistinguishable(
                measure_connections(features, partition.clusters, n_clusters, n_known, on_progress=show),
                least=interval[0],
            )
        )
    if not merges:
        return MergedPartition(partition, [])
    targets = np.arange(n_clusters)
    joined = []
    for merge in merges:
        joined.append(int((targets[partition.clusters] == merge.other).sum()))
        targets[targets == merge.other] = merge.kept
    remaining, numbers = np.unique(targets, return_inverse=True)
    clusters = numbers[partition.clusters]
    merged = assignment.from_clusters(features, clusters, len(remaining))
    found = [
        JoinedClusters(merge, int(numbers[targets[merge.kept]]), images)
        for merge, images in zip(merges, joined, strict=True)
    ]
    return MergedPartition(replace(merged, stability=partition.stability), found)
