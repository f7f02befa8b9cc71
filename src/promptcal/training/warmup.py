"""Stage 1, warm-up: semi-supervised contrastive learning on the class token, and the same on [P] (Eq. 2 and 3)."""

from typing import Any

import torch
from torch import Tensor

from promptcal.config import LossConfig
from promptcal.losses import semi_supervised_terms
from promptcal.models import Network, projected_cosine
from promptcal.training.stage import Batch, StepResult


class WarmupStage:
    name = "warmup"

    def __init__(self, network: Network, loss: LossConfig) -> None:
        self.network = network
        self.loss = loss

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        weights = self.loss
        total = torch.zeros((), device=batch.views.device)
        logs: dict[str, Tensor] = {}
        for token, output in self.network(batch.views).items():
            terms = semi_supervised_terms(
                projected_cosine(output.z, output.z),
                batch.labels,
                self_temperature=weights.self_temperature,
                supervised_temperature=weights.supervised_temperature,
            )
            loss = (1 - weights.alpha) * terms.self_supervised + weights.alpha * terms.supervised
            total = total + (loss if token == "cls" else weights.gamma * loss)
            logs[f"{token}/self"] = terms.self_supervised.detach()
            logs[f"{token}/supervised"] = terms.supervised.detach()
        return StepResult(total, logs)

    def after_update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
