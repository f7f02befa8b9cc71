"""FixMatch (Sohn et al., 2020) for category discovery: confident predictions of one view are targets for the other."""

import torch
from torch.nn import functional as F

from promptcal.config import Config, Section
from promptcal.methods.assignment import ClassifierAssignment
from promptcal.methods.base import OneStageMethod
from promptcal.methods.parametric import labelled_cross_entropy, mean_entropy
from promptcal.models import ClassifierNetwork, CosineClassifier
from promptcal.training.stage import PlainStage, StepResult


class FixMatchSettings(Section):
    threshold: float = 0.7  # confidence from which a prediction is a target
    temperature: float = 0.1
    entropy_weight: float = 2.0


class FixMatchConfig(Config):
    fixmatch: FixMatchSettings = FixMatchSettings()


class FixMatchNetwork(ClassifierNetwork):
    def __init__(self, vit, config):
        super().__init__(vit)
        self.classifier, self.temperature = CosineClassifier(vit.dim, config.n_classes), config.fixmatch.temperature

    def classify(self, features):
        return self.classifier(features) / self.temperature


class FixMatchStage(PlainStage):
    def __init__(self, name, network, settings):
        self.name, self.network, self.settings = name, network, settings

    def step(self, batch, epochs_done):
        logits = self.network.classify(self.network.embeddings(batch.views).cls)
        probabilities = logits.softmax(dim=1)
        confidence, target = probabilities.detach().roll(len(logits) // 2, dims=0).max(dim=1)  # of the other view
        pseudo = (F.cross_entropy(logits, target, reduction="none") * (confidence >= self.settings.threshold)).mean()
        loss = labelled_cross_entropy(logits, batch.labels) + pseudo
        return StepResult(
            loss - self.settings.entropy_weight * mean_entropy(probabilities), {"pseudo": pseudo.detach()}
        )


class FixMatch(OneStageMethod):
    name, title, config_class = "fixmatch", "FixMatch", FixMatchConfig
    presets = {"": {"model": {"prompts": 0}}, "quick": {"optim": {"lr": 0.01}}}

    def build_network(self, vit, n_known):
        return FixMatchNetwork(vit, self.config)

    def stage(self, name, network, context):
        return FixMatchStage(name, network, self.config.fixmatch)

    def augment(self, views, generator):  # brightness, for each view
        return views + 0.2 * torch.randn(len(views), 1, 1, 1, generator=generator, device=views.device)

    def assignment(self, network):
        return ClassifierAssignment(network)
