"""Which images a report shows."""

from itertools import zip_longest

import numpy as np

from promptcal.run.assignments import Assignments

MAX_IMAGES = 10_000
N_EXAMPLES = 12
_MIN_PER_CATEGORY = 20


def members_by_confidence(assignments: Assignments, cluster: int, *, unlabelled: bool = False) -> np.ndarray:
    """The images of a cluster, or only those without a label, from typical to doubtful."""
    members = np.flatnonzero((assignments.clusters == cluster) & ~(assignments.labelled & unlabelled))
    return members[np.argsort(-assignments.confidence[members], kind="stable")]


def sample_evenly(values: np.ndarray, n: int) -> np.ndarray:
    """At most ``n`` of the values, evenly from the first to the last."""
    return values[np.linspace(0, len(values) - 1, min(n, len(values))).round().astype(int)]


def select_images(assignments: Assignments, limit: int = MAX_IMAGES) -> np.ndarray:
    """The images to show, by category and confidence: all, or evenly from typical to doubtful in each category."""
    by_category = [members_by_confidence(assignments, cluster) for cluster in range(len(assignments.names))]
    counts = _counts(np.array([len(members) for members in by_category]), limit)
    selected = [sample_evenly(members, count) for members, count in zip(by_category, counts, strict=True)]
    return np.concatenate(selected) if selected else np.empty(0, dtype=np.int64)


def _counts(sizes: np.ndarray, limit: int) -> np.ndarray:
    """How many images of each category: in proportion to its size, but at least a few."""
    if sizes.sum() <= limit:
        return sizes
    floor = np.minimum(sizes, max(1, min(_MIN_PER_CATEGORY, limit // len(sizes))))
    rest = max(0, limit - int(floor.sum()))
    return floor + ((sizes - floor) * rest / (sizes - floor).sum()).astype(int)


def choose_examples(assignments: Assignments, n: int = N_EXAMPLES) -> np.ndarray:
    """Unlabelled images that are typical of their category, from as many categories as possible."""
    members = [members_by_confidence(assignments, c, unlabelled=True) for c in range(len(assignments.names))]
    queues = [queue for queue in members if len(queue)]
    queues = [queues[i] for i in sample_evenly(np.arange(len(queues)), n)]
    in_turn = [image for turn in zip_longest(*queues) for image in turn if image is not None]
    chosen = np.array(in_turn[:n], dtype=np.int64)
    return chosen[np.lexsort((chosen, assignments.clusters[chosen]))]
