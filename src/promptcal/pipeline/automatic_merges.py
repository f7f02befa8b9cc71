"""After a fit with an estimated number of classes: clusters that cannot be told apart are merged.

Training starts at the upper end of the interval, so some clusters are parts of one category. The classes with labels
say how strongly two categories are connected, and the halves of one (`promptcal.discovery.links`). Clusters of k-means
are compared, and the images are then clustered again into as many categories as are left. A read-out with too many
categories would not show the parts: it expects categories of equal size and fills each superfluous one with images of
several.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from promptcal.discovery.links import measure_connections
from promptcal.discovery.merging import ClusterMerge, merge_indistinguishable
from promptcal.discovery.partition import Partition
from promptcal.methods.assignment import Assignment, KMeansAssignment
from promptcal.pipeline.clustering import final_clustering
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.runtime.phases import CLUSTERING
from promptcal.runtime.progress import show_progress


class JoinedClusters(NamedTuple):
    """A merge, the final cluster that most images of both are in (its column in `Partition`), and how many joined."""

    merge: ClusterMerge
    into: int
    images: int


class FoundMerges(NamedTuple):
    """Merges of the clusters of k-means, in order."""

    clusters: np.ndarray
    n_clusters: int
    merges: list[ClusterMerge]

    @property
    def n_left(self) -> int:
        return self.n_clusters - len(self.merges)

    def joined(self, partition: Partition) -> list[JoinedClusters]:
        """What became of the merged clusters in the final partition."""
        targets, found = np.arange(self.n_clusters), []
        for merge in self.merges:
            images = int((targets[self.clusters] == merge.other).sum())
            targets[targets == merge.other] = merge.kept
            members = targets[self.clusters] == merge.kept
            into = int(partition.columns[np.bincount(partition.clusters[members]).argmax()])
            found.append(JoinedClusters(merge, into, images))
        return found


def find_merges(prepared: Task, assignment: Assignment, features: Tensor, session: Session) -> FoundMerges | None:
    """Merges of discovered clusters, but not below the lower end of the interval; None if nothing is to be merged.

    Discovered clusters are not merged into known classes; the report suggests that. A classifier has an output for each
    category, so its clusters are not merged.
    """
    config, interval = prepared.config, prepared.count_interval
    if interval is None or prepared.previous is not None or not assignment.uses_kmeans:
        return None
    kmeans = KMeansAssignment(config.loss.affinity_temperature, use_labels=assignment.labels_in_centroids)
    clusters = kmeans.partition(features, prepared.problem.labels, final_clustering(config, session)).clusters
    n_clusters, n_known = config.n_classes, len(prepared.problem.classes)
    progress = show_progress(session.console, "comparing clusters", n_clusters)
    with session.clock.phase(CLUSTERING, session.device), progress as show:
        merges = session.group.on_first(
            lambda: merge_indistinguishable(
                measure_connections(features, clusters, n_clusters, n_known, on_progress=show), least=interval[0]
            )
        )
    return FoundMerges(clusters, n_clusters, merges)
