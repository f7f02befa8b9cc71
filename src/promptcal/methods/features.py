"""Features of another model instead of images: `promptcal cluster`. Only the read-out is trained."""

from typing import Any

from pydantic import Field
from rich.console import Console
from torch import Tensor, nn

from promptcal.config import Config
from promptcal.config.schema import Section
from promptcal.data.feature_set import FeatureSet
from promptcal.methods.base import Method, StageContext
from promptcal.models.feature_network import FeatureNetwork, ProjectionKind
from promptcal.runtime.progress import show_progress
from promptcal.runtime.seeds import isolated_rng
from promptcal.training.stage import Stage


class FeaturesSection(Section):
    """The features, and what is done with them before they are clustered."""

    width: int = Field(1, ge=1, le=1_000_000, description="how many numbers a row has")
    projection: ProjectionKind = Field("none", description="what changes the features before they are clustered")


class FeaturesConfig(Config):
    features: FeaturesSection = Field(default_factory=lambda: FeaturesSection())


class Features(Method[FeaturesConfig]):
    name = "features"
    title = "trained read-out on given features"
    config_class = FeaturesConfig
    trains = False
    takes_images = False

    def build(self, n_known: int, *, pretrained: bool) -> FeatureNetwork:
        with isolated_rng(0):
            return FeatureNetwork(self.config.features.width, self.config.features.projection)

    def embed(
        self, network: nn.Module, inputs: Any, *, resize: int, skip_unreadable: bool, console: Console
    ) -> tuple[list[str], Tensor]:
        assert isinstance(network, FeatureNetwork)
        features = FeatureSet.of(inputs)
        features.check_width(network.embedding_width)
        with show_progress(console, "reading features", len(features)) as show:
            rows = features.embeddings(on_progress=show)
        device = next((p.device for p in network.buffers()), rows.device)
        return features.names, network.embed(rows.to(device))

    def stage(self, name: str, network: nn.Module, context: StageContext) -> Stage:
        raise NotImplementedError("features have no stages")
