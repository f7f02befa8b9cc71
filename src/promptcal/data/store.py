"""`ImageStore`: all images, decoded and resized once, in one uint8 buffer from which crops are cut."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from promptcal.data.decoding import UnreadableImage
from promptcal.data.images import ImageSet
from promptcal.errors import DataError
from promptcal.runtime import distributed
from promptcal.runtime.children import begin_child
from promptcal.runtime.distributed import ALONE, Group
from promptcal.runtime.free_memory import free_host_memory

GPU_SHARE, HOST_SHARE = 0.4, 0.5  # the largest share of the free memory that a store may use

_worker_load: Callable[[int], "np.ndarray | UnreadableImage"]  # set in worker processes only


@dataclass(frozen=True, eq=False)
class ImageStore:
    """``pixels`` contains every image as 3 x H x W, one after another; the others give each image's offset and size."""

    pixels: Tensor
    offsets: Tensor
    heights: Tensor
    widths: Tensor

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    def fingerprint_data(self) -> memoryview:
        """The bytes by which a change of the images is noticed."""
        return self.pixels.numpy().data

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> "ImageStore":
        """A store of decoded images, uint8 H x W x 3 each."""
        return cls.from_buffer(_concatenate([planar(a) for a in arrays]), [a.shape[:2] for a in arrays])

    @classmethod
    def from_buffer(cls, pixels: Tensor, sizes: Sequence[Sequence[int]]) -> "ImageStore":
        """A store over a buffer that contains images of these heights and widths one after another."""
        shape = torch.tensor(sizes, dtype=torch.long).reshape(-1, 2)
        ends = (3 * shape.prod(dim=1)).cumsum(dim=0)
        offsets = torch.cat([ends.new_zeros(1), ends[:-1]]) if len(ends) else ends
        return cls(pixels, offsets, shape[:, 0].clone(), shape[:, 1].clone())

    def to(self, device: torch.device | str) -> "ImageStore":
        return ImageStore(*(t.to(device) for t in (self.pixels, self.offsets, self.heights, self.widths)))

    def placed(self, device: torch.device) -> "ImageStore":
        """The store in the GPU's memory if it fits, else in pinned memory if that is large enough, else unchanged."""
        if device.type != "cuda":
            return self if device.type == "cpu" else self.to(device)
        size = self.pixels.numel()
        if size <= GPU_SHARE * torch.cuda.mem_get_info(device)[0]:
            return self.to(device)
        if size <= HOST_SHARE * free_host_memory():
            return replace(self, pixels=self.pixels.pin_memory())
        return self

    def view(self, index: int) -> Tensor:
        """One image, uint8 3 x H x W, sharing the buffer's memory."""
        offset, height, width = (int(t[index]) for t in (self.offsets, self.heights, self.widths))
        return self.pixels[offset : offset + 3 * height * width].view(3, height, width)

    def image(self, index: int) -> np.ndarray:
        """One image, uint8 H x W x 3."""
        return self.view(index).permute(1, 2, 0).cpu().numpy()

    def crop(self, index: Tensor, top: Tensor, left: Tensor, size: int, flip: Tensor) -> Tensor:
        """uint8 n x 3 x size x size: a crop of each image ``index``, mirrored where ``flip``; one gather."""
        steps = torch.arange(size, device=self.device)
        columns = torch.where(flip.unsqueeze(1), steps.flip(0), steps) + left.unsqueeze(1)
        rows = (steps + top.unsqueeze(1)) * self.widths[index].unsqueeze(1)
        planes = torch.arange(3, device=self.device) * (self.heights[index] * self.widths[index]).unsqueeze(1)
        starts = self.offsets[index].unsqueeze(1) + planes
        return self.pixels[starts[:, :, None, None] + rows[:, None, :, None] + columns[:, None, None, :]]

    def each_crop(self, index: Tensor, top: Tensor, left: Tensor, size: int, flip: Tensor) -> Iterator[Tensor]:
        """The same crops one by one, as slices; on a CPU this is many times faster than a gather."""
        heights, widths = self.heights[index], self.widths[index]
        first = self.offsets[index] + top * widths + left
        places = zip(first.tolist(), (heights * widths).tolist(), widths.tolist(), flip.tolist(), strict=True)
        for start, plane, row, mirrored in places:
            crop = self.pixels.as_strided((3, size, size), (plane, row, 1), start)
            yield crop.flip(2) if mirrored else crop


def planar(image: np.ndarray) -> np.ndarray:
    """The bytes of an H x W x 3 image in the order of a store."""
    return np.ascontiguousarray(image.transpose(2, 0, 1)).reshape(-1)


def _concatenate(parts: list[np.ndarray]) -> Tensor:
    """All parts in one tensor. Each part is freed once it is copied, so that memory does not hold everything twice."""
    whole = np.empty(sum(map(len, parts)), dtype=np.uint8)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return torch.from_numpy(whole)


def decoded(
    images: ImageSet, shorter_side: int | None, *, processes: bool | None = None, cores: int | None = None
) -> Iterator[np.ndarray | UnreadableImage]:
    """Each image in order, resized (not for None), or the reason why it cannot be read; on all ``cores``.

    PIL holds the GIL for part of its work, so threads do not scale beyond a few cores. With more cores and many
    images, ``processes`` are faster despite their start-up time.
    """
    cores = cores or distributed.cores()
    if processes is None:
        processes = cores > 4 and len(images) >= 1000 and sys.platform == "linux"
    load = partial(_load, images, shorter_side)
    if not processes:
        with ThreadPoolExecutor(cores) as threads:
            for few in _windows(len(images), 16 * cores):
                yield from threads.map(load, few)
        return
    # forked, so that the images are not copied to each worker
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(cores, context, _init_worker, (load, os.getpid())) as pool:
        for few in _windows(len(images), 64 * cores):
            yield from pool.map(_load_in_worker, few, chunksize=8)


def _windows(n: int, size: int) -> Iterator[range]:
    """Ranges of a few images, to limit the memory of decoded images that are not stored yet."""
    return (range(n)[first : first + size] for first in range(0, n, size))


def _load(images: ImageSet, shorter_side: int | None, i: int) -> np.ndarray | UnreadableImage:
    try:
        return images.resized(i, shorter_side) if shorter_side else np.asarray(images.image(i))
    except UnreadableImage as fault:
        return UnreadableImage(str(fault))  # without its cause, which may not be picklable


def _init_worker(load: Callable[[int], np.ndarray | UnreadableImage], parent: int) -> None:
    begin_child(parent)
    global _worker_load
    _worker_load = load


def _load_in_worker(i: int) -> np.ndarray | UnreadableImage:
    return _worker_load(i)


def decode(
    images: ImageSet,
    shorter_side: int,
    *,
    skip_unreadable: bool = False,
    part: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
    group: Group = ALONE,
) -> tuple[ImageStore, list[int], list[tuple[str, str]]]:
    """The store, the positions of the images in it, and the name and reason of each unreadable image.

    Unreadable images are an error unless ``skip_unreadable``. No readable image at all is an error too, unless the
    images are only a ``part`` of a larger set. In a group, each process decodes a share, and all get all images.
    """
    parts, sizes = [], []
    kept: list[int] = []
    faults: list[tuple[str, str]] = []
    for image in readable_images(images, stored_size(images, shorter_side), kept, faults, on_progress, group):
        parts.append(planar(image))
        sizes.append(image.shape[:2])
    pixels = _concatenate(parts)
    sizes, kept, faults = group.all_gather_list(sizes), group.all_gather_list(kept), group.all_gather_list(faults)
    if not (part and skip_unreadable):
        check_readable(faults, len(kept), skip_unreadable)
    return ImageStore.from_buffer(group.all_gather_bytes(pixels), sizes), kept, faults


def readable_images(
    images: ImageSet,
    shorter_side: int | None,
    kept: list[int],
    faults: list[tuple[str, str]],
    on_progress: Callable[[int], None],
    group: Group = ALONE,
    cores: int | None = None,
) -> Iterator[np.ndarray]:
    """Decode this process's share of the images. Add their positions to ``kept``, unreadable images to ``faults``."""
    own = range(len(images))[group.part(len(images))]
    chosen = images if group.world == 1 else images.subset(own)
    for i, image in zip(own, decoded(chosen, shorter_side, cores=cores), strict=True):
        if isinstance(image, UnreadableImage):
            faults.append((images.names[i], str(image)))
        else:
            kept.append(i)
            yield image
        on_progress(min(len(images), group.world * (i - own.start + 1)))


def check_readable(faults: list[tuple[str, str]], n_read: int, skip_unreadable: bool) -> None:
    """Raise an error if there are ``faults`` that may not be skipped, or no readable images."""
    if faults and not skip_unreadable:
        name, reason = faults[0]
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise DataError(f"cannot read {name} ({reason}){more}; remove it or pass --skip-unreadable")
    if not n_read:
        raise DataError("none of the images could be read; check that they are image files")


def stored_size(images: ImageSet, shorter_side: int) -> int | None:
    """The shorter side of stored images; None to store equal squares of at most half that side unchanged.

    Such small images (CIFAR for a 224-px backbone) need a fiftieth of the memory and are enlarged on the device.
    """
    first = images.size(0)
    if first is None or first[0] != first[1] or 2 * first[0] > shorter_side:
        return shorter_side
    return None if all(images.size(i) == first for i in range(len(images))) else shorter_side
