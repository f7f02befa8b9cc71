"""ORCA (Cao et al., *Open-World Semi-Supervised Learning*, ICLR 2022).

A cosine classifier over all categories. Its supervised loss has a margin that grows with the uncertainty of the
unlabelled images:

    L = L_S + eta_1 L_P + eta_2 R,   eta_1 = eta_2 = 1,   p = softmax( s W . z ),   s = 10
    L_S = 1/n sum_{i labelled} -log  e^{s(W_yi . z_i + lambda u)} / ( e^{s(W_yi . z_i + lambda u)} + sum_{j != yi} e^{s W_j . z_i} )
    u   = mean over unlabelled images of 1 - max_k p_k, at most 0.5 (as in the published code),   lambda = 1
    L_P = 1/(m + n) sum_i -log < p_i, p'_i+ >
    R   = KL( mean p || uniform ) = log C - H(mean p)

where z is the L2-normalised feature, W_k are unit prototypes, and i+ is another image of i's class if i is labelled,
else i's nearest neighbour in the batch by cosine; p is of the first view and p' of the second. u is measured before
each epoch, on the centre views of all unlabelled images. An image is assigned to the category with the largest p.
"""  # noqa: E501

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from promptcal.config import Config, Section
from promptcal.config.schema import LARGEST_WEIGHT
from promptcal.methods.base import ClassifierMethod, StageContext
from promptcal.methods.parametric import labelled_cross_entropy, mean_entropy
from promptcal.models import ClassifierNetwork, CosineClassifier, PromptedViT
from promptcal.training.stage import Batch, Stage, StepResult


class ORCASettings(Section):
    """Weights of the terms, and the margin."""

    scale: float = Field(10.0, gt=0, le=LARGEST_WEIGHT, description="scale of the cosines")
    margin_weight: float = Field(1.0, ge=0, le=LARGEST_WEIGHT, description="margin for each unit of uncertainty")
    max_margin: float = Field(0.5, ge=0, le=LARGEST_WEIGHT, description="largest uncertainty that counts")
    pair_weight: float = Field(1.0, ge=0, le=LARGEST_WEIGHT, description="weight of the loss of neighbour pairs")
    entropy_weight: float = Field(1.0, ge=0, le=LARGEST_WEIGHT, description="weight of the mean entropy")


class ORCAConfig(Config):
    orca: ORCASettings = Field(default_factory=lambda: ORCASettings())


def margin_cross_entropy(cosines: Tensor, labels: Tensor, margin: Tensor | float, scale: float) -> Tensor:
    """L_S: cross-entropy of scaled cosines with ``margin`` added to the true class, over labelled rows (not -1)."""
    true_class = F.one_hot(labels.clamp(min=0), cosines.shape[1]).to(cosines)
    return labelled_cross_entropy(scale * (cosines + margin * true_class), labels)


def positive_partners(features: Tensor, labels: Tensor, images: Tensor, generator: torch.Generator) -> Tensor:
    """i+ for each row: a random row of its class if labelled, else the nearest by cosine; itself if none exists.

    ``images`` are the numbers of the images: a batch may contain an image twice, and no image is its own partner.
    """
    unit = F.normalize(features.detach().float(), dim=1)
    cosines = unit @ unit.T
    same_class = labels.unsqueeze(1) == labels.unsqueeze(0)
    random = torch.rand(cosines.shape, generator=generator, device=cosines.device)
    drawn = torch.where(same_class, random, -torch.inf)
    preference = torch.where((labels >= 0).unsqueeze(1), drawn, cosines)
    preference = preference.masked_fill(images.unsqueeze(1) == images.unsqueeze(0), -torch.inf)
    alone = preference.isneginf().all(dim=1)
    return torch.where(alone, torch.arange(len(labels), device=labels.device), preference.argmax(dim=1))


def pairwise_loss(p: Tensor, partners: Tensor) -> Tensor:
    """L_P: -log of the inner product of each row with its partner's."""
    return -(p * partners).sum(dim=1).clamp(min=1e-7).log().mean()


class ORCANetwork(ClassifierNetwork):
    category_parameters = ("classifier.prototypes",)

    def __init__(self, vit: PromptedViT, config: ORCAConfig) -> None:
        super().__init__(vit)
        self.scale = config.orca.scale
        self.classifier = CosineClassifier(vit.dim, config.n_classes, unit_length=True)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The features and their cosines with the prototypes."""
        embedding = self.embeddings(images).cls.float()
        return embedding, self.classifier(embedding)

    def classify(self, features: Tensor) -> Tensor:
        return self.scale * self.classifier(features)


class ORCAStage(Stage):
    """``uncertainty`` is u; ``unlabelled_features`` returns the embeddings of all unlabelled images."""

    def __init__(
        self, name: str, network: ORCANetwork, config: ORCAConfig, unlabelled_features: Callable[[], Tensor]
    ) -> None:
        super().__init__(name, network, config)
        self.unlabelled_features = unlabelled_features
        self.uncertainty = torch.zeros((), device=next(network.parameters()).device)

    @torch.no_grad()
    def before_epoch(self, epoch: int) -> None:
        """Measure u with the current weights; without unlabelled images it is 0."""
        features = self.unlabelled_features()
        if len(features):
            self.uncertainty = 1 - torch.softmax(self.network.classify(features), dim=1).amax(dim=1).mean()

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        settings, n = self.config.orca, len(batch.labels) // 2
        features, cosines = self.network(batch.views)
        labels, images = batch.labels[:n], batch.indices[:n]
        p, p_other_view = torch.softmax(settings.scale * cosines, dim=1).chunk(2)

        uncertainty = self.uncertainty.clamp(max=settings.max_margin)
        supervised = margin_cross_entropy(cosines[:n], labels, settings.margin_weight * uncertainty, settings.scale)
        partners = positive_partners(features[:n], labels, images, batch.generator)
        pairwise = pairwise_loss(p, p_other_view[partners])
        entropy = mean_entropy(p)
        loss = supervised + settings.pair_weight * pairwise - settings.entropy_weight * entropy
        logs = {"supervised": supervised, "pairwise": pairwise, "mean_entropy": entropy, "uncertainty": uncertainty}
        return StepResult(loss, logs)

    def state_dict(self) -> dict[str, Any]:
        return {"uncertainty": self.uncertainty}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.uncertainty = state["uncertainty"].to(self.uncertainty.device)


class ORCA(ClassifierMethod[ORCAConfig]):
    name = "orca"
    title = "ORCA"
    config_class = ORCAConfig
    network_class = ORCANetwork
    presets: ClassVar[dict[str, Any]] = {
        "": {
            "model": {"prompts": 0},
            "data": {"batch_size": 512, "sampling": "natural"},
            "optim": {"weight_decay": 5e-4, "schedule": "steps", "milestones": [140, 180]},
        },
        # with few steps, the pairwise term moves new classes to known outputs before the labels take effect
        "quick": {"orca": {"pair_weight": 0.25}},
    }

    def stage(self, name: str, network: ORCANetwork, context: StageContext) -> ORCAStage:  # type: ignore[override]
        return ORCAStage(name, network, self.config, context.unlabelled_features)
