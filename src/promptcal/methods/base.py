"""What `fitting.py` asks of a method."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from promptcal.config.schema import Config
from promptcal.methods.promptcal.warmup import Distillation
from promptcal.models import DiscoveryNetwork, ProjectionNetwork, PromptedViT
from promptcal.training.stage import Stage


class StageContext(NamedTuple):
    """What a stage may know besides the config: class numbers (known classes first) for statistics only, images to
    distil on, and the centres of the categories as k-means finds them now (None where a stage is gone on with)."""

    truth: Tensor | None
    n_known: int
    distillation: Callable[[], Distillation | None]
    centres: Callable[[], Tensor] | None = None


class Method(ABC):
    """A way to learn the categories.

    ``title`` names it for people, and ``stage_titles`` its stages where there are several. Where the network is a
    `ClassifierNetwork`, images are assigned by its classifier; otherwise by k-means on the class token, which is
    given the labels if ``uses_labels_to_cluster``.
    """

    title: ClassVar[str]
    stage_titles: ClassVar[dict[str, str]] = {}
    uses_labels_to_cluster: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def network(self, vit: PromptedViT, n_known: int) -> DiscoveryNetwork:
        """What is trained; by default the ViT with a projection head for each token."""
        return ProjectionNetwork(vit, **self.head_sizes())

    def head_sizes(self) -> dict[str, int]:
        model = self.config.model
        return {
            "hidden": model.head_hidden,
            "bottleneck": model.head_bottleneck,
            "prototypes": model.head_prototypes,
        }

    @abstractmethod
    def epochs(self) -> dict[str, int]:
        """Epochs by stage, in order; a stage of 0 epochs is left out."""

    @abstractmethod
    def stage(self, name: str, network: Any, surroundings: StageContext) -> Stage:
        """The stage to train next; the network holds the best weights of the one before."""


class OneStage(Method):
    """A method with a single stage of its own name, as long by default as PromptCAL's two together."""

    name: ClassVar[str]

    def epochs(self) -> dict[str, int]:
        own = getattr(self.config, self.name).epochs
        return {self.name: self.config.warmup.epochs + self.config.affinity.epochs if own is None else own}
