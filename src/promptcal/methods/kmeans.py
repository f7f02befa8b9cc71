"""Clustering of the features of the frozen backbone: nothing but a read-out is trained.

`kmeans` (MacQueen, 1967) does not use labels to cluster. Afterwards each known class names one cluster, so that as many
labelled images as possible are in the cluster of their class. `semi-supervised-kmeans` (Vaze et al., CVPR 2022) keeps
labelled images in the cluster of their class. `frozen` assigns by `clustering.readout`, as methods that train do; it is
the first result of every fit that trains, and `promptcal fit --quick`.
"""

from typing import Any, ClassVar

from pydantic import model_validator

from promptcal.config import Config
from promptcal.methods.assignment import Assignment, KMeansAssignment
from promptcal.methods.base import Method, StageContext
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.training.stage import Stage


class KMeansConfig(Config):
    @model_validator(mode="after")
    def _no_prompts(self) -> "KMeansConfig":
        if self.model.prompts:
            raise ValueError(f"model.prompts must be 0 for the method {self.method}, which does not train them")
        return self


class KMeans(Method[KMeansConfig]):
    name = "kmeans"
    title = "k-means, frozen backbone"
    config_class = KMeansConfig
    presets: ClassVar[dict[str, Any]] = {"": {"model": {"prompts": 0}}}
    trains = False

    def build_network(self, vit: PromptedViT, n_known: int) -> DiscoveryNetwork:
        return DiscoveryNetwork(vit)

    def stage(self, name: str, network: DiscoveryNetwork, context: StageContext) -> Stage:
        raise NotImplementedError("k-means has no stages")

    def assignment(self, network: DiscoveryNetwork) -> Assignment:
        return KMeansAssignment(self.config.loss.affinity_temperature, use_labels=False)


class SemiSupervised(KMeans):
    name = "semi-supervised-kmeans"
    title = "semi-supervised k-means, frozen backbone"

    def assignment(self, network: DiscoveryNetwork) -> Assignment:
        return KMeansAssignment(self.config.loss.affinity_temperature)


class Frozen(KMeans):
    name = "frozen"
    title = "read-out, frozen backbone"

    def assignment(self, network: DiscoveryNetwork) -> Assignment:
        return Method.assignment(self, network)
