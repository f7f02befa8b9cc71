"""Views of images that are not kept decoded: the workers of a DataLoader decode them again in every epoch."""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from promptcal.data.decoding import UnreadableImage
from promptcal.data.images import ImageSet
from promptcal.data.store import ImageStore, check_readable, readable_images
from promptcal.data.views import WHOLE, Normalise, View
from promptcal.errors import DataError
from promptcal.runtime import distributed
from promptcal.runtime.distributed import ALONE, Group


@dataclass(frozen=True, eq=False)
class StreamedImages:
    """Images that are decoded on each access.

    With ``digests``, hashes of the pixels at the start of the run, a changed or removed image is an error, because the
    result would not be reproducible.
    """

    images: ImageSet
    shorter_side: int
    digests: Sequence[bytes] = ()

    def fingerprint_data(self) -> bytes:
        """The bytes by which a change of the images is noticed."""
        return hashlib.sha256(b"".join(self.digests)).digest()

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> np.ndarray:
        name = self.images.names[index]
        try:
            image = self.images.resized(index, self.shorter_side)
        except UnreadableImage as fault:
            if not self.digests:
                raise
            raise _changed(f"{name} was readable when the run began and is not now ({fault})") from fault
        if self.digests and _digest(image) != self.digests[index]:
            raise _changed(f"{name} has changed since the run began")
        return image


def _changed(what: str) -> DataError:
    return DataError(f"{what}; restore it, then run the same command with --resume")


def _digest(image: np.ndarray) -> bytes:
    digest = hashlib.blake2b(f"{image.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def scan_images(
    images: ImageSet,
    shorter_side: int,
    *,
    skip_unreadable: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
    group: Group = ALONE,
) -> tuple[StreamedImages, list[int], list[tuple[str, str]]]:
    """Like `store.decode`, but keep no pixels: read every image once to find the unreadable ones before training."""
    kept: list[int] = []
    faults: list[tuple[str, str]] = []
    digests = [_digest(image) for image in readable_images(images, shorter_side, kept, faults, on_progress, group)]
    digests, kept, faults = group.all_gather_list(digests), group.all_gather_list(kept), group.all_gather_list(faults)
    check_readable(faults, len(kept), skip_unreadable)
    return StreamedImages(images.subset(kept), shorter_side, digests), kept, faults


@dataclass(frozen=True, eq=False)
class _Batches(Dataset["Tensor | str"]):
    """Item k is batch k of views, computed in a worker by `View`; or an error message."""

    source: StreamedImages
    size: int
    order: Tensor
    seeds: Sequence[int] | None
    part: slice

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, k: int) -> Tensor | str:
        try:
            return self._views(k)
        except DataError as error:
            return str(error)  # a raised exception would include the worker's traceback in its message

    def _views(self, k: int) -> Tensor:
        chosen, index = self.order[k][self.part].unique(return_inverse=True)  # decode an image drawn twice once
        store = ImageStore.of([self.source.image(int(i)) for i in chosen])
        view = View(store, self.size, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))  # pixels unchanged
        if self.seeds is None:
            views = view.centre(index)
        else:
            views = view.cropped(index.repeat(2), view.draws_of_two(self.order.shape[1], self.seeds[k], self.part))
        return views.round().to(torch.uint8)  # a quarter of the bytes of float32


_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
_HAS_SIGWAITINFO = hasattr(signal, "sigwaitinfo")  # Linux


def _ignore_stop_signals(worker: int) -> None:
    """Leave stop signals to the main process, which may need more batches; only its own SIGTERM ends a worker."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        while parent is not None and signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
            pass
        os._exit(0)

    if _HAS_SIGWAITINFO:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        threading.Thread(target=wait, daemon=True).start()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block stop signals for processes started in this context; this process receives them afterwards."""
    if not _HAS_SIGWAITINFO:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # read first: the next line may raise KeyboardInterrupt
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StreamedView:
    """`View` for streamed images: the same crops for the same seeds, computed by ``workers`` processes."""

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
        """Like `View.batches`."""
        return self._loaded(_Batches(self.source, self.size, order, seeds, part))

    def centres(self, images: Tensor, batch_size: int) -> Iterator[Tensor]:
        """Like `View.centres`."""
        full = len(images) // batch_size * batch_size
        for part in (images[:full].view(-1, batch_size), images[full:].view(1, -1)):
            if part.numel():
                yield from self._loaded(_Batches(self.source, self.size, part, None, WHOLE))

    def _loaded(self, batches: _Batches) -> Iterator[Tensor]:
        pinned = self.device.type == "cuda"
        loader = DataLoader(
            batches, batch_size=None, num_workers=self.workers, pin_memory=pinned, worker_init_fn=_ignore_stop_signals
        )
        with _stop_signals_blocked():
            loaded = iter(loader)
        try:
            for pixels in loaded:
                if isinstance(pixels, str):
                    raise DataError(pixels)
                yield self.normalise(pixels.to(self.device, non_blocking=pinned))
        finally:
            del loaded  # ends its workers, even if a traceback refers to this frame
