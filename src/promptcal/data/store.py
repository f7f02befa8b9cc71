"""All images decoded and resized once, kept as ragged uint8 in one buffer, cropped and flipped by one gather."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from promptcal.data.images import ImageSet, UnreadableImage
from promptcal.errors import DataError


class ImageStore:
    """``pixels`` holds every image row by row (total pixels x 3); the rest says where each one lies."""

    def __init__(self, pixels: Tensor, offsets: Tensor, heights: Tensor, widths: Tensor) -> None:
        self.pixels = pixels
        self.offsets = offsets
        self.heights = heights
        self.widths = widths

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> "ImageStore":
        """From decoded images, uint8 H x W x 3 each."""
        sizes = torch.tensor([a.shape[:2] for a in arrays], dtype=torch.long).reshape(-1, 2)
        areas = sizes.prod(dim=1)
        pixels = np.empty((int(areas.sum()), 3), dtype=np.uint8)
        offsets = torch.cat([areas.new_zeros(1), areas.cumsum(dim=0)[:-1]]) if len(arrays) else areas
        for array, offset in zip(arrays, offsets.tolist(), strict=True):
            pixels[offset : offset + array.shape[0] * array.shape[1]] = array.reshape(-1, 3)
        return cls(torch.from_numpy(pixels), offsets, sizes[:, 0].clone(), sizes[:, 1].clone())

    def to(self, device: torch.device | str) -> "ImageStore":
        return ImageStore(*(t.to(device) for t in (self.pixels, self.offsets, self.heights, self.widths)))

    def crop(self, index: Tensor, top: Tensor, left: Tensor, size: int, flip: Tensor) -> Tensor:
        """uint8 n x 3 x size x size: a square of each image ``index``, mirrored where ``flip``."""
        steps = torch.arange(size, device=self.device)
        columns = torch.where(flip.unsqueeze(1), steps.flip(0), steps) + left.unsqueeze(1)
        rows = steps + top.unsqueeze(1)
        positions = self.offsets[index].view(-1, 1, 1) + (
            rows.unsqueeze(2) * self.widths[index].view(-1, 1, 1) + columns.unsqueeze(1)
        )
        return self.pixels[positions].permute(0, 3, 1, 2)

    def image(self, index: int) -> np.ndarray:
        """One resized image, uint8 H x W x 3."""
        offset, height, width = (int(t[index]) for t in (self.offsets, self.heights, self.widths))
        return self.pixels[offset : offset + height * width].view(height, width, 3).cpu().numpy()


def decode(
    images: ImageSet,
    shorter_side: int,
    *,
    skip_unreadable: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
) -> tuple[ImageStore, list[int], list[tuple[str, str]]]:
    """The store, the positions of the images in it, and the name and fault of each image left out.

    Unreadable images are an error that names them unless ``skip_unreadable``.
    """

    def load(i: int) -> np.ndarray | UnreadableImage:
        try:
            return images.resized(i, shorter_side)
        except UnreadableImage as fault:
            return fault

    arrays, kept, faults = [], [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # PIL decodes and resizes without holding the interpreter lock
        for i, loaded in enumerate(pool.map(load, range(len(images)))):
            if isinstance(loaded, UnreadableImage):
                faults.append((images.names[i], str(loaded)))
            else:
                arrays.append(loaded)
                kept.append(i)
            on_progress(i + 1)
    if faults and not skip_unreadable:
        name, reason = faults[0]
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise DataError(f"cannot read {name} ({reason}){more}; remove it or pass --skip-unreadable")
    if not arrays:
        raise DataError("none of the images could be read; check that they are image files")
    return ImageStore.of(arrays), kept, faults
