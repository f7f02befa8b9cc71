"""After a fit with an estimated number of classes: the number in its interval on which the read-outs agree most.

A read-out with one category too many divides a class, and one with too few joins two. Which class that is depends on
the start, so the read-outs of several starts agree most if the number is right (what this gains:
`results/measurements.md`, "Number of classes").

To compare numbers, a small read-out is enough: it has as many starts, but they are trained for fewer steps, in smaller
batches and on a part of the images. All of them together take about as long as the complete read-out that is then made
for the best number.
"""

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.heads import estimated_sizes, train_heads
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.sampling import sample_rows, weight_in_sample
from promptcal.methods.assignment import Assignment
from promptcal.pipeline.clustering import cluster_prior
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.runtime.phases import AGREEMENT
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed

_MOST_NUMBERS = 16  # a wider interval keeps its upper end
_MOST_TRIED = 8  # of more numbers, every second one is tried, and then those beside the best
_MOST_ROWS = 20_000  # images that the numbers are compared on
_STARTS, _ITERATIONS = 12, 5  # of k-means, for a small read-out
_STEPS, _BATCH = 100, 512  # of its training


def compares_numbers(prepared: Task, assignment: Assignment) -> bool:
    """Whether there are several numbers to choose from."""
    return len(_numbers(prepared, assignment)) > 1


def agreed_number(prepared: Task, assignment: Assignment, features: Tensor, session: Session) -> int:
    """The number of categories. It is that of the config if nothing is compared: without an interval or a trained
    read-out, and if the interval is wide."""
    numbers = _numbers(prepared, assignment)
    if len(numbers) == 1:
        return numbers[0]
    labels, seed = prepared.problem.labels, derive_seed(prepared.config.seed, "agreed number")
    chosen = sample_rows(labels, _MOST_ROWS, seed)
    rows = features if len(chosen) == len(features) else features[chosen.to(features.device)]
    weight = prepared.problem.unlabelled_weight * weight_in_sample(labels, chosen.numpy())

    def agreement(number: int) -> float:
        with session.clock.phase(AGREEMENT, session.device):
            task = prepared.with_n_classes(number)
            return session.group.on_first(lambda: _agreement(rows, labels[chosen.numpy()], task, weight, seed))

    tried = numbers[:: 1 if len(numbers) <= _MOST_TRIED else 2]
    expected = len(tried) if len(tried) == len(numbers) else len(tried) + 2
    with progress_bar(session.console) as bar:
        shown = bar.add_task("comparing numbers of categories", total=expected, note="")
        found: dict[int, float] = {}

        def best_of(candidates: list[int]) -> int:
            for number in candidates:
                found[number] = agreement(number)
                bar.update(shown, advance=1)
            return max(found, key=lambda number: found[number])  # the largest of equal ones, which was tried first

        best = best_of(list(tried))
        best = best_of([number for number in (best + 1, best - 1) if number in numbers and number not in found])
        bar.update(shown, total=expected, completed=expected)
    return best


def _numbers(prepared: Task, assignment: Assignment) -> range:
    """From the largest one down. With known classes alone, all starts are the same, so there is nothing to compare."""
    most, interval = prepared.config.n_classes, prepared.count_interval
    least = most
    if interval is not None and prepared.previous is None and assignment.trains_readout:
        least = min(most, max(interval[0], len(prepared.problem.classes) + 1))
    if most - least >= _MOST_NUMBERS:
        least = most
    return range(most, least - 1, -1)


def _agreement(features: Tensor, labels: np.ndarray, task: Task, unlabelled_weight: float, seed: int) -> float:
    """The mean stability of the unlabelled images in a small read-out."""
    config, settings = task.config, task.config.clustering
    kmeans = SemiSupervisedKMeans(
        config.n_classes,
        _STARTS,
        min(settings.max_iter, _ITERATIONS),
        settings.tol,
        random_state=seed,
        n_kept=_STARTS,
        max_points_per_cluster=settings.max_points_per_cluster,
    ).fit(features, labels)
    sizes = estimated_sizes(kmeans.labels_, config.n_classes, np.where(labels < 0, unlabelled_weight, 1.0))
    heads = train_heads(
        features,
        labels,
        torch.from_numpy(kmeans.kept_centers_),
        prior=cluster_prior(config, sizes, task.problem.labels),
        seed=seed,
        steps=_STEPS,
        batch=_BATCH,
        unlabelled_weight=unlabelled_weight,
    )
    assert heads.stability is not None
    return float(heads.stability[labels < 0].mean())
