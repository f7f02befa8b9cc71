"""RankStats+ (Han et al., *Automatically Discovering and Learning New Visual Categories with Ranking Statistics*,
ICLR 2020, as Vaze et al. adapt it to GCD).

A linear classifier over all categories. Images with the same top features form positive pairs:

    L = L_CE + L_BCE + omega(t) 2 L_MSE
    L_CE  = mean over labelled images of -log p_y,   p = softmax( eta(z) )
    s_ij  = 1 if top_k(z_i) = top_k(z_j) as sets, else 0,   k = 5
    L_BCE = -1/M^2 sum_ij [ s_ij log p_i . p'_j + (1 - s_ij) log(1 - p_i . p'_j) ]   over the M images of a batch
    L_MSE = mean of ( p - p' )^2 over all images
    omega(t) = lambda e^{-5 (1 - t/T)^2},   t <= T epochs;   lambda = 5, T = 50 on CIFAR-10; 50 and 150 elsewhere

where p is of the first view, p' of the second, top_k(z) are the k dimensions in which feature z is largest, and t is
the number of finished epochs, a whole number. The original has a separate head for the new classes, pairs of unlabelled
images only, and the consistency of each head. The adaptation, and this code, have one head for all, pairs of all
images, and its consistency twice. An image is assigned to the category with the largest p.
"""

import math
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.config import Config, Section
from promptcal.config.schema import LARGEST_WEIGHT, MOST_EPOCHS
from promptcal.methods.base import ClassifierMethod
from promptcal.methods.parametric import labelled_cross_entropy
from promptcal.models import ClassifierNetwork, PromptedViT
from promptcal.training.stage import Batch, Stage, StepResult

_CIFAR10_RAMP = {"consistency": 5.0, "ramp_epochs": 50.0}


class RankStatsSettings(Section):
    """Ranking statistics and the consistency term."""

    top: int = Field(5, ge=1, le=100_000, description="a pair is positive if this many largest dimensions are the same")
    consistency: float = Field(
        50.0,
        ge=0,
        le=LARGEST_WEIGHT,
        description="weight of the consistency between both views, at the end of its ramp",
    )
    ramp_epochs: float = Field(150.0, ge=0, le=MOST_EPOCHS, description="epochs over which the consistency rises")


class RankStatsConfig(Config):
    rankstats: RankStatsSettings = Field(default_factory=lambda: RankStatsSettings())


def same_ranking(features: Tensor, k: int) -> Tensor:
    """s (n x n, boolean): whether the ``k`` largest dimensions of two rows are the same set.

    >>> same_ranking(torch.tensor([[3.0, 2.0, 1.0], [5.0, 9.0, 0.0], [0.0, 1.0, 2.0]]), 2)[0].tolist()
    [True, True, False]
    """
    top = torch.zeros_like(features, dtype=torch.float32).scatter_(1, features.topk(k, dim=1).indices, 1.0)
    return top @ top.T == k


def pairwise_cross_entropy(p: Tensor, p_other_view: Tensor, same: Tensor) -> Tensor:
    """L_BCE."""
    together = (p @ p_other_view.T).clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(together, same.to(together))


def ramp_up(weight: float, epochs_done: int, length: float) -> float:
    """omega(t)."""
    done = min(1.0, epochs_done / length) if length else 1.0
    return weight * math.exp(-5 * (1 - done) ** 2)


class RankStatsNetwork(ClassifierNetwork):
    category_parameters = ("classifier.weight", "classifier.bias")

    def __init__(self, vit: PromptedViT, config: RankStatsConfig) -> None:
        super().__init__(vit)
        self.classifier = nn.Linear(vit.dim, config.n_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """L2-normalised features, and their logits."""
        features = F.normalize(self.embeddings(images).cls.float(), dim=1)
        return features, self.classify(features)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(self.rescale(features)).float()


class RankStatsStage(Stage):
    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        settings, n = self.config.rankstats, len(batch.labels) // 2
        features, logits = self.network(batch.views)
        p, p_other_view = torch.softmax(logits, dim=1).chunk(2)
        same = same_ranking(features.detach()[:n], settings.top)
        supervised = labelled_cross_entropy(logits[:n], batch.labels[:n])
        pairwise = pairwise_cross_entropy(p, p_other_view, same)
        consistency = F.mse_loss(p, p_other_view)
        weight = ramp_up(settings.consistency, int(epochs_done), settings.ramp_epochs)
        loss = supervised + pairwise + weight * 2 * consistency
        logs = {
            "supervised": supervised,
            "pairwise": pairwise,
            "consistency": consistency,
            "same_ranking": same.float().mean(),
        }
        return StepResult(loss, logs)


class RankStats(ClassifierMethod[RankStatsConfig]):
    name = "rankstats"
    title = "RankStats+"
    config_class = RankStatsConfig
    network_class = RankStatsNetwork
    stage_class = RankStatsStage
    presets: ClassVar[dict[str, Any]] = {
        # the published code steps a schedule of 170 twice in each epoch
        "": {"model": {"prompts": 0}, "optim": {"weight_decay": 1e-4, "schedule": "steps", "milestones": [85, 170]}},
        "quick": {"rankstats": _CIFAR10_RAMP},
        "cifar10": {"rankstats": _CIFAR10_RAMP},
        **{preset: {"optim": {"lr": 0.001}} for preset in ("cub", "cars", "aircraft", "herbarium19")},
    }
