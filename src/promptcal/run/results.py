"""`results.json` and `evaluation.json`: what was measured of a run."""

import math
from dataclasses import asdict
from typing import Literal

from pydantic import Field
from typing_extensions import Self

from promptcal.metrics import DiscoveryAccuracy
from promptcal.run.changes import ChangeSummary
from promptcal.runtime.json_model import JSONModel

Protocol = Literal["transductive", "inductive"]
BASELINES = {  # titles
    "kmeans": "k-means, frozen backbone",
    "semi_supervised_kmeans": "semi-supervised k-means, frozen backbone",
}


class Scores(JSONModel):
    """Accuracies in [0, 1], as `promptcal.metrics.DiscoveryAccuracy`; None where there is nothing to score."""

    all: float | None
    known: float | None
    new: float | None
    separate_all: float | None
    separate_known: float | None
    separate_new: float | None

    @classmethod
    def of(cls, accuracy: DiscoveryAccuracy) -> Self:
        return cls(**{part: None if math.isnan(value) else value for part, value in asdict(accuracy).items()})

    def percent(self) -> dict[str, float]:
        """In per cent, without the parts that have nothing to score."""
        return {part: 100 * value for part, value in self.model_dump().items() if value is not None}


class StageResult(JSONModel):
    """A finished stage: which epoch was kept, its validation score, and its accuracy where the truth is known."""

    best_epoch: int
    epochs: int
    score: float | None = None
    accuracy: Scores | None = None

    @property
    def kept_last_epoch(self) -> bool:
        return self.best_epoch == self.epochs


class RunResults(JSONModel):
    """What a fit measured.

    ``baselines`` are accuracies of the frozen backbone by clustering ("kmeans", "semi_supervised_kmeans"), ``stages``
    the finished stages in order. ``selected`` and ``last`` are the accuracies of the final assignments with the
    selected epoch's weights and with those of the last epoch. ``seconds`` are those of all parts of a resumed run.
    ``unmet_conditions`` says what the published protocol has and this run does not (None for the default protocol).
    """

    method: str
    protocol: Protocol = "transductive"
    unmet_conditions: list[str] | None = None
    baselines: dict[str, Scores] = Field(default_factory=dict)
    stages: dict[str, StageResult] = Field(default_factory=dict)
    selected: Scores | None = None
    last: Scores | None = None
    changes: ChangeSummary | None = None
    seconds: float | None = None


class Evaluation(JSONModel):
    """What `promptcal evaluate` measured: the number of scored images and their accuracy."""

    n_scored: int
    accuracy: Scores
