"""The accuracy of a run's assignments, and that of each step which led to them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from promptcal.methods import METHODS, WITHOUT_TRAINING
from promptcal.methods.base import Method
from promptcal.metrics import discovery_accuracy
from promptcal.run.assignments import Assignments
from promptcal.run.results import BASELINES, RunResults, Scores, StageResult


class AccuracyRow(NamedTuple):
    """A line of the accuracy table. ``is_result``: it is the accuracy of the run's final weights and clustering."""

    title: str
    scores: Scores
    is_result: bool = False


def score_assignments(
    assignments: Assignments, truth: Sequence[str | None] | None, known_classes: Sequence[str]
) -> Scores | None:
    """The accuracy of `assignments.csv` on the unlabelled images whose true class is known; None without any."""
    scored = [i for i, t in enumerate(truth or []) if t is not None and not assignments.labelled[i]]
    if truth is None or not scored:
        return None
    return Scores.of(discovery_accuracy([truth[i] for i in scored], assignments.clusters[scored], known_classes))


def accuracy_rows(results: RunResults, method: type[Method[Any]], result: Scores | None) -> list[AccuracyRow]:
    """Baselines, stages, the last epoch if another one was selected, and the ``result`` as the last row.

    ``method`` is that of the fit. A first result has the title of its own method.
    """
    stages = list(results.stages.items())
    title = method.title if stages or not method.trains else f"{method.title}, untrained"
    if results.weights == "frozen":
        title = METHODS[WITHOUT_TRAINING].title
    elif results.weights == "previous":
        title = f"{method.title}, weights of the previous run"
    elif stages and stages[-1][1].accuracy in (None, results.selected):
        title = _stage_title(method, *stages.pop())
    rows = [AccuracyRow(BASELINES.get(name, name), scores) for name, scores in results.baselines.items()]
    rows += [AccuracyRow(_stage_title(method, name, s), s.accuracy) for name, s in stages if s.accuracy is not None]
    if results.last is not None and results.last != results.selected:
        rows.append(AccuracyRow(f"{method.title}, last epoch", results.last))
    rows = [row for row in rows if row.title != title]  # a baseline that is the method itself
    return rows if result is None else [*rows, AccuracyRow(title, result, is_result=True)]


def _stage_title(method: type[Method[Any]], name: str, stage: StageResult) -> str:
    """A stage's title, with its epoch if that was selected from several."""
    title = method.stage_titles.get(name, method.title)
    return title if stage.kept_last_epoch else f"{title}, epoch {stage.best_epoch} of {stage.epochs}"
