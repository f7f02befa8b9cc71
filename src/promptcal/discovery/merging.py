"""Merges clusters that cannot be told apart, the most connected pair first."""

from typing import NamedTuple

import numpy as np

from promptcal.discovery.links import Connections

_MOST_SUGGESTED = 20


class ClusterMerge(NamedTuple):
    """Cluster ``other`` becomes part of ``kept``; their connection, and the share of classes with such a one."""

    kept: int
    other: int
    connection: float
    false_rate: float


def merge_indistinguishable(connections: Connections, *, least: int, into_known: bool = False) -> list[ClusterMerge]:
    """The merges in order, until ``least`` clusters are left or no connection is above the threshold of the classes.

    Known classes are never merged with each other, and other clusters with known ones only if ``into_known``.
    """
    links, classes, n_known = connections.links, connections.classes, connections.n_known
    threshold = classes.merge_threshold()
    merges: list[ClusterMerge] = []
    n_left = int((links.sizes > 0).sum())
    while n_left > least:
        ratios = links.connections()
        ratios[:n_known, :n_known] = 0.0
        if not into_known:
            ratios[:n_known], ratios[:, :n_known] = 0.0, 0.0
        first, second = sorted(int(i) for i in np.unravel_index(ratios.argmax(), ratios.shape))
        largest = float(ratios[first, second])
        if not largest > threshold:
            break
        merges.append(ClusterMerge(first, second, largest, classes.false_merge_rate(largest)))
        links = links.merged(first, second)
        n_left -= 1
    return merges


def suggest_merges(connections: Connections) -> list[ClusterMerge]:
    """Pairs with a discovered cluster that may be one category, the most connected first; each such cluster once.

    They are connected as the halves of known classes are, or more than nearly all known classes with each other.
    """
    classes, n_known = connections.classes, connections.n_known
    ratios = connections.links.connections()
    ratios[:n_known, :n_known] = 0.0
    rows, columns = np.nonzero(np.triu(ratios) > classes.suggestion_threshold())
    pairs = sorted(zip(rows.tolist(), columns.tolist(), strict=True), key=lambda pair: -ratios[pair])
    merges: list[ClusterMerge] = []
    used: set[int] = set()
    for first, second in pairs:
        if not {first, second} & used:
            used |= {number for number in (first, second) if number >= n_known}
            merges.append(
                ClusterMerge(
                    first, second, float(ratios[first, second]), classes.false_merge_rate(ratios[first, second])
                )
            )
    return merges[:_MOST_SUGGESTED]
