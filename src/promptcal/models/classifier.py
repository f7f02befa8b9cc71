"""Networks with a classifier over all categories."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from promptcal.errors import ConfigError
from promptcal.models.head import CosineClassifier
from promptcal.models.network import DiscoveryNetwork
from promptcal.models.prompted_vit import PromptedViT


class ClassifierNetwork(DiscoveryNetwork, ABC):
    """A network with one output per category, known classes first, in their order.

    ``category_parameters`` names the parameters with one row per category, if these alone tell the categories apart.
    Without them a network cannot load another network's categories in a different order.
    """

    category_parameters: ClassVar[tuple[str, ...]] = ()

    def load_previous(self, state: dict[str, Tensor], outputs: Callable[[], Sequence[int]]) -> None:
        if not self.category_parameters:
            raise ConfigError(
                "the new categories of this method have a network of their own that cannot become known ones; "
                "fit without --from, or continue a run of another method"
            )
        own = self.state_dict()
        sources = torch.tensor(outputs(), device=next(self.parameters()).device)
        for name in self.category_parameters:
            own[name][sources >= 0] = state[name].to(own[name])[sources[sources >= 0]]
        self.load_state_dict({**state, **{name: own[name] for name in self.category_parameters}})

    def rescale(self, features: Tensor) -> Tensor:
        """L2-normalised class tokens with the length that a layer norm without weights gives them."""
        return features * math.sqrt(self.vit.dim)

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """Logits (images x categories) of L2-normalised class tokens; their softmax is the confidence."""


class CosineNetwork(ClassifierNetwork):
    """A ViT with a cosine classifier on the class token; the logits are cosines / ``temperature``."""

    category_parameters = ("classifier.prototypes",)

    def __init__(self, vit: PromptedViT, categories: int, temperature: float) -> None:
        super().__init__(vit)
        self.temperature = temperature
        self.classifier = CosineClassifier(vit.dim, categories)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the two views of a batch."""
        return self.classify(self.embeddings(images).cls)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.temperature
