"""`results.json` and `evaluation.json`: what was measured of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from typing_extensions import Self

from promptcal.metrics import DiscoveryAccuracy
from promptcal.run.categories import AutomaticMerge, CategoryTable
from promptcal.run.changes import ChangeSummary
from promptcal.runtime.json_model import JSONModel

Protocol = Literal["transductive", "inductive"]
BASELINES = {  # titles
    "kmeans": "k-means, frozen backbone",
    "semi_supervised_kmeans": "semi-supervised k-means, frozen backbone",
    "frozen": "read-out, frozen backbone",
}


NOT_TRAINED = (
    "Nothing was trained, so the result is the first one. To train later, run the same command with --allow-long and "
    "another --output."
)


class Scores(JSONModel):
    """Accuracies in [0, 1], as `promptcal.metrics.DiscoveryAccuracy`; None where there is nothing to score.

    ``repeats`` are the scores of the same weights with each seed of k-means, if there are several (`of_repeats`); the
    other fields are then those of the first seed.
    """

    all: float | None
    known: float | None
    new: float | None
    separate_all: float | None
    separate_known: float | None
    separate_new: float | None
    nmi: float | None = None  # None also in files of versions 0.1 and 0.2
    ari: float | None = None
    repeats: list["Scores"] = Field(default_factory=list)

    @classmethod
    def of(cls, accuracy: DiscoveryAccuracy) -> Self:
        values = asdict(accuracy)
        return cls.model_validate({part: None if math.isnan(value) else value for part, value in values.items()})

    @classmethod
    def of_repeats(cls, accuracies: Sequence[DiscoveryAccuracy]) -> Self:
        """The scores of the first seed of k-means, with those of all seeds as ``repeats``."""
        repeats = [cls.of(accuracy) for accuracy in accuracies]
        return repeats[0].model_copy(update={"repeats": repeats if len(repeats) > 1 else []})

    def percent(self) -> dict[str, float]:
        """The scores in per cent, averaged over the repeats, without the parts that have nothing to score."""
        repeats = [scores.model_dump() for scores in self.repeats or [self]]
        scored = [part for part, value in repeats[0].items() if value is not None]
        return {part: 100 * fmean(scores[part] for scores in repeats) for part in scored}

    @model_validator(mode="after")
    def _repeats_score_the_same(self) -> Self:
        parts = [{part for part, value in repeat if value is not None} for repeat in self.repeats]
        if any(repeat.repeats for repeat in self.repeats) or any(scored != parts[0] for scored in parts):
            raise ValueError("repeats must score the same parts, and have no repeats themselves")
        return self

    @model_serializer(mode="wrap")
    def _without_empty_repeats(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = handler(self)
        return {key: value for key, value in values.items() if key != "repeats" or value}


class StageResult(JSONModel):
    """A finished stage: which epoch was kept, its validation score, and its accuracy where the truth is known."""

    best_epoch: int
    epochs: int
    score: float | None = None
    accuracy: Scores | None = None

    @property
    def kept_last_epoch(self) -> bool:
        return self.best_epoch == self.epochs


class ResultQuality(JSONModel):
    """How good a result is without hidden labels; both measures are from 0 to 1.

    ``held_out`` is the accuracy on the ``n_held_out`` labels that training did not use (None if there are none),
    ``stability`` the share of the read-out's heads that agree on an unlabelled image, or for k-means the mean adjusted
    Rand index of clusterings of random parts of the images. A continued run begins with given clusters, so it has no
    stability.
    """

    held_out: float | None
    n_held_out: int
    stability: float | None = None


class Comparison(JSONModel):
    """The first result, before training, against that of training.

    ``preferred`` is the better one by these measures, ``kept`` the one in the run directory.
    """

    first: ResultQuality
    trained: ResultQuality
    preferred: Literal["first", "trained"]
    kept: Literal["first", "trained"]

    def description(self) -> str:
        """Which result was kept and why, in a sentence or two."""
        first, trained = self.first, self.trained
        advice = "--keep trained keeps that of training."
        evidence = []
        if trained.held_out is not None and first.held_out is not None:
            after, before = (round(share * trained.n_held_out) for share in (trained.held_out, first.held_out))
            of = f"of {trained.n_held_out}"
            evidence.append(f"held-out labels that are right: {after} {of} after training, {before} {of} before")
        if trained.stability is not None and first.stability is not None:
            evidence.append(
                f"stability of the clusters {trained.stability:.2f} after training, {first.stability:.2f} before"
            )
        reason = "; ".join(evidence)
        if not evidence and self.kept == "first":
            return (
                "Nothing shows whether training helped, so the result is the first one, from before training: no label "
                "was held out. That needs a class with two labels, one of which no training has used. "
                f"{advice}"
            )
        if not evidence:
            return "The result is that of training; no label was held out to compare it with the first one."
        if self.kept == "first":
            return f"Training did not help, so the result is the first one, from before training ({reason}). {advice}"
        if self.preferred == "first":
            return f"The result is that of training, although the first one seems better ({reason})."
        measured = "the weighted mean of both measures" if len(evidence) == 2 else "this measure"
        return f"The result is that of training. By {measured} it is not worse than the first one ({reason})."


class Adaptation(JSONModel):
    """Whether given features are whitened, and the ``reason``: the shares of hidden labels that are right ``without``
    it and with ``whitened`` features (None if too few classes have labels)."""

    used: Literal["none", "whitened"]
    reason: str
    without: float | None = None
    whitened: float | None = None


class RunResults(JSONModel):
    """What a fit measured.

    ``baselines`` are accuracies of the frozen backbone by clustering ("kmeans", "semi_supervised_kmeans", and "frozen"
    for a trained read-out), ``stages`` the finished stages in order. ``selected`` and ``last`` are the accuracies of
    the final assignments with the selected epoch's weights and with those of the last epoch. ``stability`` is the mean
    over the unlabelled images of the share of starts of the trained read-out that agree (None without one).
    ``seconds`` are those of all parts of a resumed run, and of the report once it is written. ``phases`` says what they
    were spent on (`PhaseClock`): the seconds by phase, which add up to them; empty in files of earlier versions.
    ``comparison`` compares the first result with the trained one. ``weights``: if the run has the first result,
    whether it is of the frozen backbone or of the previous run's weights; ``selected`` is then its accuracy.
    ``adaptation`` says whether given features are whitened (None if that was not tried).
    ``categories`` describes each category (None in files of earlier versions). ``automatic_merges`` are the clusters
    that were merged after training, if the number of classes was estimated with an interval (None otherwise).
    ``unmet_conditions`` says what the published protocol has and this run does not (None for the default protocol).
    """

    method: str
    protocol: Protocol = "transductive"
    unmet_conditions: list[str] | None = None
    baselines: dict[str, Scores] = Field(default_factory=dict)
    stages: dict[str, StageResult] = Field(default_factory=dict)
    selected: Scores | None = None
    last: Scores | None = None
    stability: float | None = None
    comparison: Comparison | None = None
    weights: Literal["frozen", "previous"] | None = None
    adaptation: Adaptation | None = None
    changes: ChangeSummary | None = None
    categories: CategoryTable | None = None
    automatic_merges: list[AutomaticMerge] | None = None
    seconds: float | None = None
    phases: dict[str, float] = Field(default_factory=dict)

    def timed(self, phases: Mapping[str, float]) -> Self:
        """The results with the seconds of these phases."""
        rounded = {name: round(seconds, 2) for name, seconds in phases.items()}
        return self.model_copy(update={"phases": rounded, "seconds": round(sum(rounded.values()), 2)})

    def reason(self) -> str | None:
        """Which of two results the finished run has, and why; None if there was only one."""
        if self.comparison is not None:
            return self.comparison.description()
        return None if self.weights is None else NOT_TRAINED


class Evaluation(JSONModel):
    """What `promptcal evaluate` measured: the number of scored images and their accuracy."""

    n_scored: int
    accuracy: Scores
