"""What is assigned to categories, and how: the part of a fit that needs no images."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import Self

from promptcal.config import Config
from promptcal.data import StreamedView, View
from promptcal.data.views import Normalise
from promptcal.methods.base import Method
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Problem
from promptcal.report.contact_sheets import SheetPictures


@dataclass(frozen=True)
class TestImages:
    """The readable test images, and their true classes."""

    view: View | StreamedView
    truth: list[str]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem, the config, the method and its network.

    ``test`` are the test images of the inductive protocol. ``held_out`` are labels held out from training to select an
    epoch (-1 elsewhere). ``released`` and ``keep_confirmed``: see `FitInputs`. ``pictures`` are shown on contact sheets
    (None: there are none). ``count_interval`` is that of an estimated number of classes, if it has one.
    """

    problem: Problem
    config: Config
    method: Method[Any]
    network: Any
    held_out: np.ndarray
    previous: PreviousRun | None
    released: frozenset[str]
    keep_confirmed: bool
    pictures: SheetPictures | None
    test: TestImages | None = None
    count_interval: tuple[int, int] | None = None

    @property
    def stages(self) -> list[str]:
        """The stages to train; there are none without images."""
        return []

    @property
    def training_labels(self) -> np.ndarray:
        """-1 where unlabelled or held out."""
        return np.where(self.held_out >= 0, -1, self.problem.labels)

    def with_n_classes(self, number: int) -> Self:
        """The same with another number of categories."""
        return replace(self, config=self.config.model_copy(update={"n_classes": number}))

    def example_views(self, images: np.ndarray) -> tuple[Tensor, Normalise] | None:
        """Some images as the network sees them, and their normalisation; None if it sees no images."""
        return None
