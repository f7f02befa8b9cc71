"""From images on disk to batches of views on the device."""

from promptcal.data.embedded import EmbeddedSet, embedded_set
from promptcal.data.images import ImageSet
from promptcal.data.labels import parse_labels, read_labels
from promptcal.data.sampler import BalancedSampler
from promptcal.data.splits import label_half
from promptcal.data.store import ImageStore
from promptcal.data.stream import StreamedImages, StreamedView
from promptcal.data.views import View

__all__ = [
    "BalancedSampler",
    "EmbeddedSet",
    "ImageSet",
    "ImageStore",
    "StreamedImages",
    "StreamedView",
    "View",
    "embedded_set",
    "label_half",
    "parse_labels",
    "read_labels",
]
