"""After a fit with an estimated number of classes: the number in its interval on which the read-outs agree most.

A read-out with one category too many divides a class, and one with too few joins two. Which class that is depends on
the start, so the read-outs of several starts agree most if the number is right (what this gains:
`results/measurements.md`, "Number of classes").
"""

from dataclasses import replace

from torch import Tensor

from promptcal.methods.assignment import Assignment
from promptcal.pipeline.final_partition import FinalPartition, final_partition
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task

_MOST_NUMBERS = 16  # a wider interval keeps its upper end
_MOST_TRIED = 8  # of more numbers, every second one is tried, and then those beside the best


def compares_numbers(prepared: Task, assignment: Assignment) -> bool:
    """Whether there are several numbers to choose from."""
    return len(_numbers(prepared, assignment)) > 1


def partition_by_agreement(
    prepared: Task, assignment: Assignment, features: Tensor, session: Session
) -> tuple[Task, FinalPartition]:
    """Every image in a cluster, and the task with the number of clusters. It is the largest one if nothing is
    compared: without an interval or a trained read-out, and if the interval is wide."""
    numbers = _numbers(prepared, assignment)

    def with_number(number: int) -> tuple[Task, FinalPartition]:
        task = replace(prepared, config=prepared.config.model_copy(update={"n_classes": number}))
        return task, final_partition(task, assignment, features, session)

    best = with_number(numbers[0])
    tried = numbers[:: 1 if len(numbers) <= _MOST_TRIED else 2]
    for number in tried[1:]:
        best = _more_agreed(best, with_number(number))
    chosen = best[0].config.n_classes
    for number in (chosen + 1, chosen - 1):
        if number in numbers and number not in tried:
            best = _more_agreed(best, with_number(number))
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


def _more_agreed(
    first: tuple[Task, FinalPartition], second: tuple[Task, FinalPartition]
) -> tuple[Task, FinalPartition]:
    """By the mean stability of the unlabelled images; the first of equal ones."""
    unlabelled = first[0].problem.labels < 0
    agreement = [
        0.0 if stability is None else float(stability[unlabelled].mean())
        for stability in (first[1].partition.stability, second[1].partition.stability)
    ]
    return second if agreement[1] > agreement[0] else first
