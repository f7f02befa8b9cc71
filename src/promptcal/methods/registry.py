"""Methods by name: the built-in ones, and those of other packages (entry-point group `promptcal.methods`)."""

from typing import TYPE_CHECKING, TypeVar

from promptcal.runtime.plugins import Registry

if TYPE_CHECKING:
    from promptcal.methods.base import Method

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
    },
)
WITHOUT_LABELS = "kmeans"  # the method of a fit without a single label

M = TypeVar("M", bound="type[Method]")


def register_method(method: M) -> M:
    """Class decorator: make a method that no package declares available under its ``name``."""
    METHODS.register(method.name, method)
    return method
