"""Views of images too many to keep decoded: read again each time, by a DataLoader's workers ahead of training.

An image that is gone or another one when it is read again stops the run: it would not be the run it began as.
"""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from promptcal.data.images import ImageSet, UnreadableImage
from promptcal.data.store import ImageStore, decoded_by, refuse_faults
from promptcal.data.views import WHOLE, Normalise, View
from promptcal.errors import DataError
from promptcal.runtime import distributed
from promptcal.runtime.distributed import ALONE, Group


class StreamedImages:
    """What a store is to a view, without the store: every image is decoded when it is asked for.

    ``digests`` are of the images' pixels when the run began, by which a change since is noticed; without them images
    are taken as they are.
    """

    def __init__(self, images: ImageSet, shorter_side: int, digests: Sequence[bytes] = ()) -> None:
        self.images = images
        self.shorter_side = shorter_side
        self.digests = digests

    def fingerprint_data(self) -> bytes:
        """The bytes by which a change of the images is noticed."""
        return hashlib.sha256(b"".join(self.digests)).digest()

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> np.ndarray:
        if not self.digests:
            return self.images.resized(index, self.shorter_side)
        name = self.images.names[index]
        try:
            image = self.images.resized(index, self.shorter_side)
        except UnreadableImage as fault:
            raise DataError(
                f"{name} could be read when the run began and cannot be now ({fault}); put it back, "
                "then run the same command with --resume"
            ) from fault
        if _digest(image) != self.digests[index]:
            raise DataError(
                f"{name} is not the image it was when the run began; put that back, "
                "then run the same command with --resume"
            )
        return image


def _digest(image: np.ndarray) -> bytes:
    digest = hashlib.blake2b(f"{image.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


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
            digests.append(_digest(image))
            kept.append(i)
    digests, kept, faults = group.all_gather_list(digests), group.all_gather_list(kept), group.all_gather_list(faults)
    refuse_faults(faults, len(kept), skip_unreadable)
    return StreamedImages(images.subset(kept), shorter_side, digests), kept, faults


class _Batches(Dataset["Tensor | str"]):
    """Item k is batch k of views, made in a worker by the very code that serves stored images; or what is wrong."""

    def __init__(
        self,
        source: StreamedImages,
        size: int,
        order: Tensor,
        seeds: Sequence[int] | None = None,
        part: slice = WHOLE,
    ) -> None:
        self.source, self.size, self.order, self.seeds, self.part = source, size, order, seeds, part

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, k: int) -> Tensor | str:
        try:
            return self._views(k)
        except DataError as error:
            return str(error)  # an exception would come with the worker's traceback in its words

    def _views(self, k: int) -> Tensor:
        chosen, place = self.order[k][self.part].unique(return_inverse=True)  # an image drawn twice is decoded once
        store = ImageStore.of([self.source.image(int(i)) for i in chosen])
        unchanged = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)
        view = View(store, self.size, *unchanged)
        if self.seeds is None:
            views = view.centre(place)
        else:
            views = view.cropped(place.repeat(2), view.draws_of_two(self.order.shape[1], self.seeds[k], self.part))
        return views.round().to(torch.uint8)  # four times less to hand over


_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_CAN_TELL_SENDERS = hasattr(signal, "sigwaitinfo")  # Linux


def _answer_only_to_parent(worker: int) -> None:
    """Stop signals are the main process's to answer, which may still want a batch; its own SIGTERM ends a worker."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        while parent is not None and signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
            pass
        os._exit(0)

    if _CAN_TELL_SENDERS:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        threading.Thread(target=wait, daemon=True).start()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _stop_signals_held_back() -> Iterator[None]:
    """Processes begun meanwhile do not get them; this one does, afterwards."""
    if not _CAN_TELL_SENDERS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
                yield from self._loaded(_Batches(self.source, self.size, part))

    def _loaded(self, batches: _Batches) -> Iterator[Tensor]:
        pinned = self.device.type == "cuda"
        loader = DataLoader(
            batches, batch_size=None, num_workers=self.workers, pin_memory=pinned, worker_init_fn=_answer_only_to_parent
        )
        with _stop_signals_held_back():
            loaded = iter(loader)
        try:
            for pixels in loaded:
                if isinstance(pixels, str):
                    raise DataError(pixels)
                yield self.normalise(pixels.to(self.device, non_blocking=pinned))
        finally:
            del loaded  # ends its workers, which a traceback would keep waiting
