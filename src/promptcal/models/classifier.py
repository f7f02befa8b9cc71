"""Networks that put an image into a category themselves."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.models.network import TrainedNetwork


class ClassifierNetwork(TrainedNetwork, ABC):
    """A network with one output for each category, known classes first, in their order."""

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """Logits (images x categories) of L2-normalised class tokens; their softmax is the confidence."""


class CosineClassifier(nn.Module):
    """Cosines of its input with one prototype for each category."""

    def __init__(self, dim: int, categories: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.empty(categories, dim))
        nn.init.trunc_normal_(self.prototypes, std=0.02)

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(features.float(), dim=1) @ F.normalize(self.prototypes.float(), dim=1).T
