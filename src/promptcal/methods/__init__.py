"""Methods of generalized category discovery, on one backbone and in one training loop.

`fitting.py` drives each through the same interface (`base.Method`): build the network, train its stages in order,
assign the images by its classifier if it has one and by k-means if not.
"""

from promptcal.config import Config
from promptcal.methods.base import Method, Surroundings
from promptcal.methods.gcd import GCD
from promptcal.methods.kmeans import KMeans
from promptcal.methods.promptcal import TwoStages, WarmupOnly

METHODS: dict[str, type[Method]] = {
    "promptcal": TwoStages,
    "promptcal-warmup": WarmupOnly,
    "gcd": GCD,
    "kmeans": KMeans,
}


def method_of(config: Config) -> Method:
    return METHODS[config.method](config)


__all__ = ["METHODS", "Method", "Surroundings", "method_of"]
