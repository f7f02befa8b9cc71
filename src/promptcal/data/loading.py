"""Load images into the selected kind of store, and create views of it."""

from collections.abc import Callable
from pathlib import Path

import torch

from promptcal.data.cache import decode_to_file
from promptcal.data.images import ImageSet
from promptcal.data.store import HOST_SHARE, ImageStore, decode, stored_size
from promptcal.data.stream import StreamedImages, StreamedView, scan_images
from promptcal.data.views import View
from promptcal.errors import DataError
from promptcal.runtime.distributed import ALONE, Group
from promptcal.runtime.free_memory import check_sizes, free_host_memory


def load_images(
    images: ImageSet,
    resize: int,
    *,
    store: str,
    cache: Path | None,
    run_parent: Path,
    skip_unreadable: bool,
    on_progress: Callable[[int], None],
    group: Group = ALONE,
) -> tuple[ImageStore | StreamedImages, list[int], list[tuple[str, str]]]:
    """A store of the kind ``store`` (auto, memory, mapped, stream), the positions of readable images, and name and
    reason of each unreadable image.

    A mapped file is written to ``cache``, by default to a folder in ``run_parent``. The processes of a group divide the
    decoding. In memory each process has all images; a mapped file is shared.
    """
    if store == "stream":
        return scan_images(images, resize, skip_unreadable=skip_unreadable, on_progress=on_progress, group=group)
    if cache is None and store == "auto":
        exceeds = _exceeds_memory(images, resize, copies=group.rank_info.local_world)
        store = "mapped" if group.all_reduce_max(exceeds) else "memory"
    if cache is None and store == "mapped":
        cache = run_parent / "promptcal-cache"
        if cache.is_symlink():
            raise DataError(f"the cache {cache} is a link; give the folder that it links to as data.cache")
    if cache is None:
        needed = group.rank_info.local_world * _likely_bytes(images, resize)
        check_sizes({"data.store=memory (mapped takes a file) or data.resize": needed}, torch.device("cpu"))
        return decode(images, resize, skip_unreadable=skip_unreadable, on_progress=on_progress, group=group)
    return decode_to_file(images, resize, cache, skip_unreadable=skip_unreadable, on_progress=on_progress, group=group)


def _exceeds_memory(images: ImageSet, resize: int, copies: int) -> bool:
    """Whether this many copies of the decoded images would fill half of the free memory."""
    return copies * _likely_bytes(images, resize) * 4 // 3 > HOST_SHARE * free_host_memory()


def _likely_bytes(images: ImageSet, resize: int) -> int:
    """The size of the decoded images if they were squares; most are a third larger."""
    side = stored_size(images, resize) or min(images.size(0) or (resize,))
    return len(images) * 3 * side * side


def view_of(
    store: ImageStore | StreamedImages,
    size: int,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    *,
    resize: int,
    device: torch.device,
) -> View | StreamedView:
    """Views on ``device``. The store is moved to the GPU if it fits."""
    if isinstance(store, StreamedImages):
        return StreamedView(store, size, mean, std, device=device)
    return View(store.placed(device), size, mean, std, resize=resize, device=device, reuse=True)
