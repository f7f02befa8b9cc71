"""From images on disk to batches of views on the device. The names below are imported when first used."""

from typing import TYPE_CHECKING

from promptcal.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from promptcal.data.embedded import embedded_set as embedded_set
    from promptcal.data.images import ImageSet as ImageSet
    from promptcal.data.labels import parse_labels, read_labels  # noqa: F401
    from promptcal.data.sampler import BalancedSampler, NaturalSampler, Sampler, build_sampler  # noqa: F401
    from promptcal.data.splits import label_half as label_half
    from promptcal.data.store import ImageStore as ImageStore
    from promptcal.data.stream import StreamedImages, StreamedView  # noqa: F401
    from promptcal.data.views import View as View

__getattr__ = lazy_names(
    __name__,
    {  # by module
        "embedded": "embedded_set",
        "images": "ImageSet",
        "labels": "parse_labels read_labels",
        "sampler": "BalancedSampler NaturalSampler Sampler build_sampler",
        "splits": "label_half",
        "store": "ImageStore",
        "stream": "StreamedImages StreamedView",
        "views": "View",
    },
)
