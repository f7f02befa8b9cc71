"""Views of images too many to keep decoded: read again each time, by a DataLoader's workers ahead of training."""

import hashlib
import signal
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from promptcal import distributed
from promptcal.data.images import ImageSet, UnreadableImage
from promptcal.data.store import ImageStore, decoded_by, refuse_faults
from promptcal.data.views import WHOLE, Normalise, View
from promptcal.distributed import ALONE, Group


class StreamedImages:
    """What a store is to a view, without the store: every image is decoded when it is asked for."""

    def __init__(self, images: ImageSet, shorter_side: int, digest: bytes = b"") -> None:
        self.images = images
        self.shorter_side = shorter_side
        self.digest = digest

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> np.ndarray:
        return self.images.resized(index, self.shorter_side)


def inspect(
    images: ImageSet,
    shorter_side: int,
    *,
    skip_unreadable: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
    group: Group = ALONE,
) -> tuple[StreamedImages, list[int], list[tuple[str, str]]]:
    """As `store.decode`, keeping nothing: every image is read once, to find the bad ones before training does."""
    digests, kept, faults = [], [], []
    for i, image in decoded_by(group, images, shorter_side, on_progress):
        if isinstance(image, UnreadableImage):
            faults.append((images.names[i], str(image)))
        else:
            digests.append(hashlib.sha256(np.ascontiguousarray(image).data).digest())
            kept.append(i)
    digests, kept, faults = group.all_of(digests), group.all_of(kept), group.all_of(faults)
    refuse_faults(faults, len(kept), skip_unreadable)
    digest = hashlib.sha256(b"".join(digests)).digest()
    return StreamedImages(images.subset(kept), shorter_side, digest), kept, faults


class _Batches(Dataset[Tensor]):
    """Item k is batch k of views, made in a worker by the very code that serves stored images."""

    def __init__(
        self, source: StreamedImages, size: int, order: Tensor, seeds: Sequence[int] | None, part: slice = WHOLE
    ) -> None:
        self.source, self.size, self.order, self.seeds, self.part = source, size, order, seeds, part

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, k: int) -> Tensor:
        chosen, place = self.order[k][self.part].unique(return_inverse=True)  # an image drawn twice is decoded once
        store = ImageStore.of([self.source.image(int(i)) for i in chosen])
        unchanged = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)
        view = View(store, self.size, *unchanged)
        if self.seeds is None:
            views = view.centre(place)
        else:
            views = view.cropped(place.repeat(2), view.draws_of_two(self.order.shape[1], self.seeds[k], self.part))
        return views.round().to(torch.uint8)  # four times less to hand over


def _leave_ctrl_c(worker: int) -> None:
    """It is the main process's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class StreamedView:
    """`View` for streamed images: the same crops for the same seeds, from ``workers`` processes."""

    def __init__(
        self,
        source: StreamedImages,
        size: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        *,
        device: torch.device | str = "cpu",
        workers: int | None = None,
    ) -> None:
        self.source = source
        self.size = size
        self.device = torch.device(device)
        self.normalise = Normalise(mean, std, self.device)
        self.workers = distributed.cores() if workers is None else workers

    def batches(self, order: Tensor, seeds: Sequence[int], part: slice = WHOLE) -> Iterator[Tensor]:
        """As `View.batches`."""
        return self._loaded(_Batches(self.source, self.size, order, seeds, part))

    def centres(self, images: Tensor, batch_size: int) -> Iterator[Tensor]:
        """As `View.centres`."""
        full = len(images) // batch_size * batch_size
        for part in (images[:full].view(-1, batch_size), images[full:].view(1, -1)):
            if part.numel():
                yield from self._loaded(_Batches(self.source, self.size, part, None))

    def _loaded(self, batches: _Batches) -> Iterator[Tensor]:
        pinned = self.device.type == "cuda"
        loader = DataLoader(
            batches, batch_size=None, num_workers=self.workers, pin_memory=pinned, worker_init_fn=_leave_ctrl_c
        )
        for pixels in loader:
            yield self.normalise(pixels.to(self.device, non_blocking=pinned))
