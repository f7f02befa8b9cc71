"""PromptCAL (Zhang et al., CVPR 2023): warm-up with prompts, then contrastive affinity learning.

The losses of the stages are in `warmup.py` (Eq. 2 and 3) and `affinity.py` (Eq. 6 to 9). Images are assigned by
semi-supervised k-means on the class token.
"""

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from promptcal.methods.base import Method, StageContext
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.settings import VARIANTS, PromptCALConfig
from promptcal.methods.promptcal.warmup import Distillation, WarmupStage
from promptcal.models import ProjectionNetwork, PromptedViT
from promptcal.runtime.seeds import derive_seed
from promptcal.training.stage import Stage

WARMUP, AFFINITY = "warmup", "affinity"
_SECTIONS = ("method", "variant", "affinity", "simgcd", "clustering", "estimation", "device", "compile", "tensorboard")
_NOT_IN_STAGE_1: dict[str, Any] = {  # settings that stage 1 does not use; True: the whole section
    **dict.fromkeys(_SECTIONS, True),
    "loss": {"beta", "affinity_temperature"},
    "optim": {"epochs"},
    "data": {"store", "cache"},
}


class PromptCAL(Method[PromptCALConfig]):
    name = "promptcal"
    title = "PromptCAL"
    stage_titles: ClassVar[dict[str, str]] = {
        WARMUP: "PromptCAL stage 1, warm-up",
        AFFINITY: "PromptCAL stage 2, affinity learning",
    }
    config_class = PromptCALConfig
    variants = VARIANTS
    fit_variant = "recommended"
    published: ClassVar[dict[str, Any]] = {"selection": {"by": "oracle"}}
    uses_generic_images = True

    @property
    def prompt_pooling(self) -> str:
        return self.config.recipe.prompt_pooling

    def build_network(self, vit: PromptedViT, n_known: int) -> ProjectionNetwork:
        categories = self.config.n_classes if self.config.affinity.classifier else 0
        return ProjectionNetwork(vit, categories, **self.head_sizes())

    def memory_needs(self, vit: PromptedViT, n_images: int, processes: int) -> dict[str, float]:
        """Adds the memory of embeddings, and the similarities of all nodes of the affinity graph."""
        needs, settings = super().memory_needs(vit, n_images, processes), self.config.affinity
        if settings.epochs and settings.cal != "none":
            batch = self.config.data.batch_size
            filled = min(settings.memory, 2 * (n_images + batch) * settings.epochs)
            rows = filled + 2 * batch if settings.mining == "graph" else 2 * batch
            needs["affinity.memory"] = 4.0 * (settings.memory * vit.dim + rows * (filled + 2 * batch))
        return needs

    def epochs(self) -> dict[str, int]:
        return {WARMUP: self.config.warmup.epochs, AFFINITY: self.config.affinity.epochs}

    def stage(self, name: str, network: Any, context: StageContext) -> Stage:
        return (self._warmup_stage if name == WARMUP else self._affinity_stage)(network, context)

    def _warmup_stage(self, network: ProjectionNetwork, context: StageContext) -> WarmupStage:
        folder, distillation = self.config.data.generic_images, None
        if folder is not None:
            # the trunk has its pretrained weights here even in a resumed run, whose weights are loaded later
            frozen = PromptedViT(copy.deepcopy(network.vit.backbone), prompts=0, train_blocks=0)
            frozen.set_compute_dtype(network.vit.compute_dtype)
            images = context.load_images(folder)
            distillation = Distillation(frozen, images, self.config.data.batch_size)
        return WarmupStage(WARMUP, network, self.config.loss, distillation, semicl=self.config.warmup.semicl)

    def _affinity_stage(self, network: ProjectionNetwork, context: StageContext) -> AffinityStage:
        if self.config.recipe.reset_prompt_head and not context.is_continued:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(self.config.seed, "affinity", "head"))
                network.reset_prompt_head()
        if network.classifier is not None and not context.is_resumed:
            network.classifier.initialize_from(context.centroids())
        return AffinityStage(network, self.config, context.truth, context.n_known)

    def validation_score(self, stage: str, known: float, silhouette: float) -> float:
        """The warm-up is compared by the known classes alone."""
        return known if stage == WARMUP else super().validation_score(stage, known, silhouette)

    def first_stage_settings(self) -> dict[str, Any] | None:
        if not (self.config.warmup.epochs and self.config.affinity.epochs):
            return None
        return {"prompt_pooling": self.prompt_pooling, **self.config.model_dump(exclude=_NOT_IN_STAGE_1)}

    @classmethod
    def first_stage_weights(cls, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: values for name, values in weights.items() if not name.startswith("classifier.")}


class PromptCALWarmup(PromptCAL):
    """Stage 1 alone."""

    name = "promptcal-warmup"

    def epochs(self) -> dict[str, int]:
        return {WARMUP: self.config.warmup.epochs}
