"""Images into the kind of store that is asked for, and views of whatever store it became."""

from collections.abc import Callable
from pathlib import Path

import torch

from promptcal.data.cache import decode_to_file
from promptcal.data.images import ImageSet
from promptcal.data.store import HOST_SHARE, ImageStore, decode, free_host_memory, stored_size
from promptcal.data.stream import StreamedImages, StreamedView, inspect
from promptcal.data.views import View
from promptcal.runtime.distributed import ALONE, Group


def read(
    images: ImageSet,
    resize: int,
    *,
    store: str,
    cache: Path | None,
    beside: Path,
    skip_unreadable: bool,
    on_progress: Callable[[int], None],
    group: Group = ALONE,
) -> tuple[ImageStore | StreamedImages, list[int], list[tuple[str, str]]]:
    """The images in a ``store`` (auto, memory, mapped, stream), the positions kept, names and faults of the others.

    A mapped file lies in ``cache`` if that is given, else in a folder ``beside`` the run. Processes of a group share
    the reading; in memory each has all of the images, a mapped file they share.
    """
    if store == "stream":
        return inspect(images, resize, skip_unreadable=skip_unreadable, on_progress=on_progress, group=group)
    if cache is None and store == "auto":
        store = "mapped" if group.all_reduce_max(_would_crowd(images, resize, group.place.local_world)) else "memory"
    if cache is None and store == "mapped":
        cache = beside / "promptcal-cache"
    if cache is None:
        return decode(images, resize, skip_unreadable=skip_unreadable, on_progress=on_progress, group=group)
    return decode_to_file(images, resize, cache, skip_unreadable=skip_unreadable, on_progress=on_progress, group=group)


def _would_crowd(images: ImageSet, resize: int, copies: int) -> bool:
    """Whether so many copies of the decoded images would fill half of the free memory."""
    side = stored_size(images, resize) or min(images.size(0) or (resize,))
    likely_bytes = len(images) * 3 * side * side * 4 // 3
    return copies * likely_bytes > HOST_SHARE * free_host_memory()


def view_of(
    store: ImageStore | StreamedImages,
    size: int,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    *,
    resize: int,
    device: torch.device,
) -> View | StreamedView:
    """Views on ``device``, from wherever the images fit best."""
    if isinstance(store, StreamedImages):
        return StreamedView(store, size, mean, std, device=device)
    return View(store.placed(device), size, mean, std, resize=resize, device=device, reuse=True)
