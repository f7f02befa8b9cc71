"""Methods of generalized category discovery as plug-ins (`base.Method`): settings, network, stages, assignment.

`METHODS` finds them by name: the built-in ones, and those of other packages (entry-point group `promptcal.methods`).
Importing this package imports neither a method nor PyTorch nor pydantic.
"""

from typing import TYPE_CHECKING, TypeVar

from promptcal.runtime.lazy_names import lazy_names
from promptcal.runtime.plugins import Registry

if TYPE_CHECKING:
    from promptcal.methods.base import Method
    from promptcal.methods.configure import load_config, read_config, resolve, settings_for, without_training

__all__ = [
    "METHODS",
    "OF_FEATURES",
    "WITHOUT_LABELS",
    "WITHOUT_TRAINING",
    "load_config",
    "read_config",
    "register_method",
    "resolve",
    "settings_for",
    "without_training",
]

METHODS: "Registry[type[Method]]" = Registry(
    "method",
    "promptcal.methods",
    {
        "promptcal": "promptcal.methods.promptcal.method:PromptCAL",
        "promptcal-warmup": "promptcal.methods.promptcal.method:PromptCALWarmup",
        "gcd": "promptcal.methods.gcd:GCD",
        "simgcd": "promptcal.methods.simgcd:SimGCD",
        "orca": "promptcal.methods.orca:ORCA",
        "uno": "promptcal.methods.uno:UNO",
        "rankstats": "promptcal.methods.rankstats:RankStats",
        "kmeans": "promptcal.methods.kmeans:KMeans",
        "semi-supervised-kmeans": "promptcal.methods.kmeans:SemiSupervised",
        "frozen": "promptcal.methods.kmeans:Frozen",
    },
    unlisted={"features": "promptcal.methods.features:Features"},
)
WITHOUT_LABELS = "kmeans"  # the method of a fit without a single label
WITHOUT_TRAINING = "frozen"  # the method of the first result and of `fit --quick`
OF_FEATURES = "features"  # the method of a run on features instead of images

M = TypeVar("M", bound="type[Method]")


def register_method(method: M) -> M:
    """Class decorator: make a method that no package declares available under its ``name``.

    Args:
        method: A subclass of `Method`.

    Returns:
        The same class.
    """
    METHODS.register(method.name, method)
    return method


__getattr__ = lazy_names(__name__, {"configure": "load_config read_config resolve settings_for without_training"})
