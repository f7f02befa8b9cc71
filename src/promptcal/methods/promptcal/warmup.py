"""Stage 1, warm-up: semi-supervised contrastive learning on the class token, and the same on [P] (Eq. 2 and 3)."""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.config.schema import LossConfig
from promptcal.data import View
from promptcal.methods.losses import semi_supervised_terms
from promptcal.methods.promptcal.settings import TokenChoice, applies_to
from promptcal.models import ProjectionNetwork, PromptedViT, projected_cosine
from promptcal.training.stage import Batch, Stage, StepResult

_DISTILLATION_EPOCHS = 5
_FIRST_WEIGHT, _FINAL_WEIGHT = 0.5, 0.01  # at epoch 0 and, if the distillation did not end there, at epoch 5


def distillation_weight(epoch: int) -> float:
    """The published release's weight of the distillation: linear over the first five epochs, then 0.

    >>> [round(distillation_weight(epoch), 3) for epoch in range(6)]
    [0.5, 0.402, 0.304, 0.206, 0.108, 0.0]
    """
    if epoch >= _DISTILLATION_EPOCHS:
        return 0.0
    return _FIRST_WEIGHT + (_FINAL_WEIGHT - _FIRST_WEIGHT) * epoch / _DISTILLATION_EPOCHS


class Distillation:
    """Keeps the class token near the frozen backbone's on generic images."""

    def __init__(self, frozen: PromptedViT, view: View, batch_size: int) -> None:
        self.frozen = frozen.eval()
        self.view = view
        self.batch_size = batch_size

    def loss(self, network: ProjectionNetwork, seed: int) -> Tensor:
        """Mean squared difference of the L2-normalised class tokens on images drawn by ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(len(self.view.store), (self.batch_size,), generator=generator)
        draws = self.view.draws(len(images), generator)
        part = network.group.part(len(images))
        views = self.view.cropped(images[part], draws[:, part])
        with torch.no_grad():
            target = F.normalize(self.frozen(views).cls.float(), dim=1)
        student = F.normalize(network.vit(views).cls.float(), dim=1)
        return F.mse_loss(network.group.all_gather(student), network.group.all_gather(target))


class WarmupStage(Stage):
    """The stage's config is the section `loss`. ``semicl`` names the tokens with the semi-supervised loss."""

    def __init__(
        self,
        name: str,
        network: ProjectionNetwork,
        loss: LossConfig,
        distillation: Distillation | None = None,
        *,
        semicl: TokenChoice = "both",
    ) -> None:
        super().__init__(name, network, loss)
        self.distillation = distillation
        self.semicl = semicl

    def recording_key(self, epochs_done: float) -> Hashable | None:
        """The distillation reads its images from the host."""
        return None if self._distillation_weight(epochs_done) else ()

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        weights = self.config
        total = torch.zeros((), device=batch.views.device)
        logs: dict[str, Tensor] = {}
        for token, output in self.network(batch.views).items():
            if not applies_to(token, self.semicl):
                continue
            terms = semi_supervised_terms(projected_cosine(output.z, output.z), batch.labels, weights)
            loss = (1 - weights.alpha) * terms.self_supervised + weights.alpha * terms.supervised
            total = total + (loss if token == "cls" else weights.gamma * loss)
            logs |= terms.logs(token)
        if self.distillation is not None and (weight := self._distillation_weight(epochs_done)):
            distance = self.distillation.loss(self.network, batch.generator.initial_seed())
            total = total + weight * distance
            logs["distillation"] = distance
        return StepResult(total, logs)

    def _distillation_weight(self, epochs_done: float) -> float:
        return 0.0 if self.distillation is None else distillation_weight(int(epochs_done))
