"""Views of stored images: random crops and flips for training, centre crops for embedding."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from promptcal.data.enlarge import enlarged_crops, enlarging_matrix
from promptcal.data.store import ImageStore

WHOLE = slice(None)


class Normalise:
    """Map pixels 0..255 to (pixel / 255 - mean) / std with one multiplication and one addition."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        scale = [1 / (255 * s) for s in std]
        shift = [-m / s for m, s in zip(mean, std, strict=True)]
        self.scale, self.shift = (torch.tensor(v, device=device).view(3, 1, 1) for v in (scale, shift))

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.in_place(pixels.float())

    def in_place(self, values: Tensor) -> Tensor:
        return values.mul_(self.scale).add_(self.shift)


class PinnedBuffer:
    """Page-locked host memory for n crops. It is filled again only after the previous copy to the GPU has ended."""

    def __init__(self, n: int, size: int) -> None:
        self.pixels = torch.empty(n, 3, size, size, dtype=torch.uint8, pin_memory=True)
        self.copied = torch.cuda.Event()

    def send(self, crops: Iterator[Tensor], device: torch.device) -> Tensor:
        self.copied.synchronize()
        for slot, crop in zip(self.pixels, crops, strict=True):
            slot.copy_(crop)
        sent = self.pixels.to(device, non_blocking=True)
        self.copied.record(torch.cuda.current_stream(device))
        return sent


class View:
    """Crops of ``size`` pixels on ``device``, normalised with the backbone's mean and standard deviation.

    The crops are taken from images with a shorter side of ``resize``. A store of smaller images is enlarged to that
    size when they are cropped. With ``reuse``, on a CPU, each call overwrites the result of the previous call with as
    many images, because allocating memory for every training step costs more than cropping.
    """

    def __init__(
        self,
        store: ImageStore,
        size: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        *,
        resize: int | None = None,
        device: torch.device | str | None = None,
        reuse: bool = False,
    ) -> None:
        self.store = store
        self.reuse = reuse
        self.size = size
        self.device = torch.device(device) if device is not None else store.device
        self.normalise = Normalise(mean, std, self.device)
        self._enlarging = _enlarging_matrices(store, resize)
        smallest = int(torch.minimum(store.heights, store.widths).min())
        if self._enlarging is None and smallest < size:
            raise ValueError(f"crops of {size} pixels cannot be cut from a stored image of {smallest}")
        self._buffers: dict[int, Tensor] = {}
        self._pinned: dict[int, deque[PinnedBuffer]] = {}

    def random(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """One random crop of each image, flipped with probability 0.5; ``generator`` is a CPU generator."""
        return self.cropped(index, self.draws(len(index), generator))

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """The random numbers of n crops, 3 x n: vertical position, horizontal position, flip."""
        return torch.rand(3, n, generator=generator)

    def draws_of_two(self, n: int, seed: int, part: slice = WHOLE) -> Tensor:
        """The random numbers of two views of each of n images. ``part`` selects images without changing their crops."""
        draws = self.draws(2 * n, torch.Generator().manual_seed(seed))
        return draws if part == WHOLE else draws.view(3, 2, n)[:, :, part].flatten(1)

    def cropped(self, index: Tensor, draws: Tensor) -> Tensor:
        """One crop of each image at the position and with the flip given by ``draws``."""
        index = index.to(self.store.device, non_blocking=True)
        draws = draws.to(self.store.device, non_blocking=True)
        spare_rows, spare_columns = self._spare(index)
        top = (draws[0] * (spare_rows + 1)).long().clamp(max=spare_rows)
        left = (draws[1] * (spare_columns + 1)).long().clamp(max=spare_columns)
        return self._crops(index, top, left, draws[2] < 0.5)

    def batches(self, order: Tensor, seeds: Sequence[int], part: slice = WHOLE) -> Iterator[Tensor]:
        """Two random views of the images in each row of ``order``: all first views, then all second views.

        ``part`` selects images of each row. Their crops are the same as with the whole row.
        """
        for index, seed in zip(order, seeds, strict=True):
            yield self.cropped(index[part].repeat(2), self.draws_of_two(len(index), seed, part))

    def centres(self, images: Tensor, batch_size: int) -> Iterator[Tensor]:
        """The centre crops of many images in batches."""
        return (self.centre(chunk) for chunk in images.split(batch_size))

    def centre(self, index: Tensor) -> Tensor:
        """The centre crop of each image, rounded as torchvision does: int(round(spare / 2)), half to even."""
        index = index.to(self.store.device, non_blocking=True)
        top, left = (torch.round(spare / 2.0).long() for spare in self._spare(index))
        return self._crops(index, top, left, torch.zeros_like(index, dtype=torch.bool))

    def _spare(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The number of rows and columns outside the crop."""
        if self._enlarging is not None:
            down, across = self._enlarging
            return torch.full_like(index, len(down) - self.size), torch.full_like(index, len(across) - self.size)
        return self.store.heights[index] - self.size, self.store.widths[index] - self.size

    def _crops(self, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        if self._enlarging is not None:
            enlarged = self._enlarged(*self._enlarging, index, top, left, flip)
            return self.normalise(enlarged.to(self.device, non_blocking=True))
        if self.store.device.type != "cpu":
            return self.normalise(self.store.crop(index, top, left, self.size, flip))
        crops = self.store.each_crop(index, top, left, self.size, flip)
        if self.device.type == "cpu":
            return self._normalised_one_by_one(crops, len(index))
        return self.normalise(self._to_device(crops, len(index)))

    def _enlarged(self, down: Tensor, across: Tensor, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        steps = torch.arange(self.size, device=self.store.device)
        rows = down[top.unsqueeze(1) + steps]
        columns = across[left.unsqueeze(1) + torch.where(flip.unsqueeze(1), steps.flip(0), steps)]
        images = self.store.pixels.view(-1, 3, down.shape[1], across.shape[1])[index]
        return enlarged_crops(images, rows, columns)

    def _normalised_one_by_one(self, crops: Iterator[Tensor], n: int) -> Tensor:
        """Normalise each crop while it is in the processor's cache."""
        views = self._buffers.get(n)
        if views is None:
            views = torch.empty(n, 3, self.size, self.size)
            if self.reuse:
                self._buffers[n] = views
        for slot, crop in zip(views, crops, strict=True):
            self.normalise.in_place(slot.copy_(crop))
        return views

    def _to_device(self, crops: Iterator[Tensor], n: int) -> Tensor:
        """Copy crops from host memory. One pinned buffer is filled while the other is copied to the GPU."""
        if self.device.type != "cuda":
            return torch.stack(list(crops)).to(self.device)
        buffers = self._pinned.setdefault(n, deque(PinnedBuffer(n, self.size) for _ in range(2)))
        buffers.rotate()
        return buffers[0].send(crops, self.device)


def _enlarging_matrices(store: ImageStore, resize: int | None) -> tuple[Tensor, Tensor] | None:
    """The vertical and the horizontal matrix for a store of equal small images; None if they are not enlarged."""
    height, width = int(store.heights[0]), int(store.widths[0])
    if resize is None or min(height, width) >= resize:
        return None
    down = resize if height <= width else int(resize * height / width)
    across = resize if width <= height else int(resize * width / height)
    return enlarging_matrix(height, down).to(store.device), enlarging_matrix(width, across).to(store.device)
