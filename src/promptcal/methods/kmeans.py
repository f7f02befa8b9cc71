"""Plain k-means (MacQueen, 1967) on the frozen backbone's features: the baseline every method is held against.

Labels play no part in the clustering. Afterwards each known class gives its name to one cluster, such that as many
labelled images as possible lie in the cluster of their name.
"""

from typing import Any

from promptcal.methods.base import Method, StageContext
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.training.stage import Stage


class KMeans(Method):
    title = "k-means, frozen backbone"
    uses_labels_to_cluster = False

    def network(self, vit: PromptedViT, n_known: int) -> DiscoveryNetwork:
        return DiscoveryNetwork(vit)

    def epochs(self) -> dict[str, int]:
        return {}

    def stage(self, name: str, network: Any, surroundings: StageContext) -> Stage:
        raise NotImplementedError("k-means trains nothing")
