"""From images on disk to batches of views on the device. The names below are imported when first used."""

# ruff: noqa: F401

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptcal.data.embedded import EmbeddedSet, embedded_set
    from promptcal.data.images import ImageSet
    from promptcal.data.labels import Labels, parse_labels, read_labels
    from promptcal.data.sampler import BalancedSampler
    from promptcal.data.splits import label_half
    from promptcal.data.store import ImageStore
    from promptcal.data.stream import StreamedImages, StreamedView
    from promptcal.data.views import View

_MODULES = {
    "BalancedSampler": "sampler",
    "EmbeddedSet": "embedded",
    "ImageSet": "images",
    "ImageStore": "store",
    "Labels": "labels",
    "StreamedImages": "stream",
    "StreamedView": "stream",
    "View": "views",
    "embedded_set": "embedded",
    "label_half": "splits",
    "parse_labels": "labels",
    "read_labels": "labels",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
