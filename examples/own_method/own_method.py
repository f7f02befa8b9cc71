"""FixMatch (Sohn et al., 2020) for category discovery: confident predictions of one view are targets for the other."""

import torch
from torch.nn import functional as F

from promptcal.config import Config, Section
from promptcal.methods.base import ClassifierMethod
from promptcal.methods.parametric import labelled_cross_entropy, mean_entropy
from promptcal.models import CosineNetwork
from promptcal.training.stage import Stage, StepResult


class FixMatchSettings(Section):
    threshold: float = 0.7  # confidence from which a prediction is a target
    entropy_weight: float = 2.0


class FixMatchConfig(Config):
    fixmatch: FixMatchSettings = FixMatchSettings()


class FixMatchStage(Stage):
    def step(self, batch, epochs_done):
        logits, settings = self.network(batch.views), self.config.fixmatch
        probabilities = logits.softmax(dim=1)
        confidence, target = probabilities.detach().roll(len(logits) // 2, dims=0).max(dim=1)  # of the other view
        pseudo = (F.cross_entropy(logits, target, reduction="none") * (confidence >= settings.threshold)).mean()
        loss = labelled_cross_entropy(logits, batch.labels) + pseudo
        return StepResult(loss - settings.entropy_weight * mean_entropy(probabilities), {"pseudo": pseudo})


class FixMatch(ClassifierMethod):
    name, title, config_class, stage_class = "fixmatch", "FixMatch", FixMatchConfig, FixMatchStage
    presets = {"": {"model": {"prompts": 0}}, "quick": {"optim": {"lr": 0.01}}}  # noqa: RUF012

    def build_network(self, vit, n_known):
        return CosineNetwork(vit, self.config.n_classes, temperature=0.1)

    def augment(self, views, generator):  # random brightness
        return views + 0.2 * torch.randn(len(views), 1, 1, 1, generator=generator, device=views.device)
