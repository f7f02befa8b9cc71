"""PromptCAL (Zhang et al., CVPR 2023): warm-up with prompts, then contrastive affinity learning.

The stages' losses are in `training/warmup.py` (Eq. 2 and 3) and `training/affinity.py` (Eq. 6 to 9). Images are
assigned by semi-supervised k-means on the class token.
"""

from typing import ClassVar

import torch

from promptcal.methods.base import Method, StageContext
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models import ParametricNetwork, ProjectionNetwork, PromptedViT
from promptcal.runtime.seeds import derive_seed
from promptcal.training.stage import Stage


class TwoStages(Method):
    title = "PromptCAL"
    stage_titles: ClassVar[dict[str, str]] = {
        "warmup": "PromptCAL stage 1, warm-up",
        "affinity": "PromptCAL stage 2, affinity learning",
    }

    def epochs(self) -> dict[str, int]:
        return {"warmup": self.config.warmup.epochs, "affinity": self.config.affinity.epochs}

    def network(self, vit: PromptedViT, n_known: int) -> ProjectionNetwork:
        if not self.config.affinity.classifier:
            return ProjectionNetwork(vit, **self.head_sizes())
        return ParametricNetwork(vit, self.config.n_classes, **self.head_sizes())

    def stage(self, name: str, network: ProjectionNetwork, surroundings: StageContext) -> Stage:
        if name == "warmup":
            distillation, semicl = surroundings.distillation(), self.config.warmup.semicl
            return WarmupStage(network, self.config.loss, distillation, semicl=semicl)
        if self.config.switches.prompt_head == "new":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(self.config.seed, "affinity", "head"))
                network.reset_prompt_head()
        if isinstance(network, ParametricNetwork) and surroundings.centres is not None:
            network.classifier.initialize_from(surroundings.centres())
        return AffinityStage(network, self.config, surroundings.truth, surroundings.n_known)


class WarmupOnly(TwoStages):
    """Stage 1 alone, for its own number of epochs."""

    def epochs(self) -> dict[str, int]:
        return {"warmup": self.config.warmup.epochs}
