"""Methods of generalized category discovery, on one backbone and in one training loop.

`fitting.py` drives each through the same interface (`base.Method`): build the network, train its stages in order,
assign the images by its classifier if it has one and by k-means if not.
"""

from promptcal.config.schema import Config
from promptcal.methods.base import Method, StageContext
from promptcal.methods.gcd import GCD
from promptcal.methods.kmeans import KMeans
from promptcal.methods.orca import ORCA
from promptcal.methods.promptcal.method import TwoStages, WarmupOnly
from promptcal.methods.rankstats import RankStats
from promptcal.methods.simgcd import SimGCD
from promptcal.methods.uno import UNO

METHODS: dict[str, type[Method]] = {
    "promptcal": TwoStages,
    "promptcal-warmup": WarmupOnly,
    "gcd": GCD,
    "simgcd": SimGCD,
    "orca": ORCA,
    "uno": UNO,
    "rankstats": RankStats,
    "kmeans": KMeans,
}


def method_of(config: Config) -> Method:
    return METHODS[config.method](config)


__all__ = ["METHODS", "Method", "StageContext", "method_of"]
