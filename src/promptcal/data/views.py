"""Views of stored images: random crop, flip and, if asked for, zoom to train on, the centre crop to look at."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from promptcal.data.enlarge import enlarged_crops, enlarging_matrix
from promptcal.data.store import ImageStore
from promptcal.data.zoom import between_pixels, each_zoomed, zoomed

WHOLE = slice(None)


class Normalise:
    """Pixels 0..255 to (pixel / 255 - mean) / std, as one multiplication and one addition."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        scale = [1 / (255 * s) for s in std]
        shift = [-m / s for m, s in zip(mean, std, strict=True)]
        self.scale, self.shift = (torch.tensor(v, device=device).view(3, 1, 1) for v in (scale, shift))

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.in_place(pixels.float())

    def in_place(self, values: Tensor) -> Tensor:
        return values.mul_(self.scale).add_(self.shift)


class PinnedBuffer:
    """Page-locked memory for n crops on their way to a GPU; filled again only when the last ones have left it."""

    def __init__(self, n: int, size: int) -> None:
        self.pixels = torch.empty(n, 3, size, size, dtype=torch.uint8, pin_memory=True)
        self.left = torch.cuda.Event()

    def send(self, crops: Iterator[Tensor], device: torch.device) -> Tensor:
        self.left.synchronize()
        for place, crop in zip(self.pixels, crops, strict=True):
            place.copy_(crop)
        sent = self.pixels.to(device, non_blocking=True)
        self.left.record(torch.cuda.current_stream(device))
        return sent


class View:
    """Crops of ``size`` pixels, normalised with the backbone's mean and standard deviation, on ``device``.

    The crops are those of images with a shorter side of ``resize``; a store of smaller images is enlarged to
    that as they are cropped. Random views with a ``zoom`` below 1 show a square of that share of a crop's area or more,
    enlarged to a crop. With ``reuse``, on a CPU, what a call returns is overwritten by the next call for as
    many images: the training loop's views, asked for anew at every step, would cost more than cropping them.
    """

    def __init__(
        self,
        store: ImageStore,
        size: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        *,
        resize: int | None = None,
        zoom: float = 1.0,
        device: torch.device | str | None = None,
        reuse: bool = False,
    ) -> None:
        self.store = store
        self.zoom = zoom
        self.reuse = reuse
        self.size = size
        self.device = torch.device(device) if device is not None else store.device
        self.normalise = Normalise(mean, std, self.device)
        self._enlarging = self._matrices(resize)
        smallest = int(torch.minimum(store.heights, store.widths).min())
        if self._enlarging is None and smallest < size:
            raise ValueError(f"crops of {size} pixels cannot be cut from a stored image of {smallest}")
        self._rooms: dict[int, Tensor] = {}
        self._pinned: dict[int, deque[PinnedBuffer]] = {}

    def _matrices(self, resize: int | None) -> tuple[Tensor, Tensor] | None:
        """How a store of equal small images is enlarged: the matrices down and across, or None if it is not."""
        height, width = int(self.store.heights[0]), int(self.store.widths[0])
        if resize is None or min(height, width) >= resize:
            return None
        down = resize if height <= width else int(resize * height / width)
        across = resize if width <= height else int(resize * width / height)
        device = self.store.device
        return enlarging_matrix(height, down).to(device), enlarging_matrix(width, across).to(device)

    def random(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """One random crop, mirrored half of the time, of each image; ``generator`` is the host's."""
        return self.cropped(index, self.draws(len(index), generator))

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """What decides over n crops: 3 x n random numbers, and n more if they are zoomed."""
        return torch.rand(3 if self.zoom == 1 else 4, n, generator=generator)

    def draws_of_two(self, n: int, seed: int, part: slice = WHOLE) -> Tensor:
        """The same for two views of each of n images; of the images in ``part``, what they have among all n."""
        draws = self.draws(2 * n, torch.Generator().manual_seed(seed))
        return draws if part == WHOLE else draws.view(len(draws), 2, n)[:, :, part].flatten(1)

    def cropped(self, index: Tensor, draws: Tensor) -> Tensor:
        """A crop of each image, down, across and mirrored as its three ``draws`` say, zoomed as the fourth does."""
        index = index.to(self.store.device, non_blocking=True)
        draws = draws.to(self.store.device, non_blocking=True)
        if len(draws) == 4:
            return self._zoomed(index, draws)
        spare_rows, spare_columns = self._spare(index)
        top = (draws[0] * (spare_rows + 1)).long().clamp(max=spare_rows)
        left = (draws[1] * (spare_columns + 1)).long().clamp(max=spare_columns)
        return self._crops(index, top, left, draws[2] < 0.5)

    def batches(self, order: Tensor, seeds: Sequence[int], part: slice = WHOLE) -> Iterator[Tensor]:
        """Two random views of the images in each row of ``order``: the first ones, then the second ones.

        Only those in ``part`` of the row, with the crops they have among all of it.
        """
        for index, seed in zip(order, seeds, strict=True):
            yield self.cropped(index[part].repeat(2), self.draws_of_two(len(index), seed, part))

    def centres(self, images: Tensor, batch_size: int) -> Iterator[Tensor]:
        """The centre crops of many images, batch by batch."""
        return (self.centre(chunk) for chunk in images.split(batch_size))

    def centre(self, index: Tensor) -> Tensor:
        """The centre crop of each image (torchvision's rounding)."""
        index = index.to(self.store.device, non_blocking=True)
        # torchvision rounds half to even: int(round(spare / 2))
        top, left = (torch.round(spare / 2.0).long() for spare in self._spare(index))
        return self._crops(index, top, left, torch.zeros_like(index, dtype=torch.bool))

    def _spare(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """How far a crop may be moved down and across."""
        if self._enlarging is not None:
            down, across = (torch.full_like(index, len(matrix) - self.size) for matrix in self._enlarging)
            return down, across
        return self.store.heights[index] - self.size, self.store.widths[index] - self.size

    def _crops(self, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        if self._enlarging is not None:
            return self.normalise(self._enlarged(index, top, left, flip).to(self.device, non_blocking=True))
        if self.store.device.type != "cpu":
            return self.normalise(self.store.crop(index, top, left, self.size, flip))
        return self._normalised(self.store.each_crop(index, top, left, self.size, flip), len(index))

    def _zoomed(self, index: Tensor, draws: Tensor) -> Tensor:
        extent = self.size * torch.sqrt(self.zoom + (1 - self.zoom) * draws[3])
        spare_rows, spare_columns = self._spare(index)
        heights, widths = spare_rows + self.size, spare_columns + self.size
        rows = between_pixels(draws[0] * (heights - extent), extent, heights, self.size)
        columns = between_pixels(draws[1] * (widths - extent), extent, widths, self.size, draws[2] < 0.5)
        if self._enlarging is not None:
            down, across = self._enlarging
            crops = enlarged_crops(self._whole(index), rows.mixed(down), columns.mixed(across))
            return self.normalise(crops.to(self.device, non_blocking=True))
        if self.store.device.type != "cpu":
            return self.normalise(zoomed(self.store, index, rows, columns))
        return self._normalised(each_zoomed(self.store, index, rows, columns), len(index))

    def _normalised(self, crops: Iterator[Tensor], n: int) -> Tensor:
        """Crops from host memory, on the device."""
        if self.device.type == "cpu":
            return self._normalised_one_by_one(crops, n)
        return self.normalise(self._staged(crops, n))

    def _enlarged(self, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        assert self._enlarging is not None
        down, across = self._enlarging
        steps = torch.arange(self.size, device=self.store.device)
        rows = down[top.unsqueeze(1) + steps]
        columns = across[left.unsqueeze(1) + torch.where(flip.unsqueeze(1), steps.flip(0), steps)]
        return enlarged_crops(self._whole(index), rows, columns)

    def _whole(self, index: Tensor) -> Tensor:
        """Stored images that are to be enlarged, as they are."""
        assert self._enlarging is not None
        height, width = (matrix.shape[1] for matrix in self._enlarging)
        return self.store.pixels.view(-1, 3, height, width)[index]

    def _normalised_one_by_one(self, crops: Iterator[Tensor], n: int) -> Tensor:
        """Each crop while it is in the processor's cache."""
        views = self._room(n, torch.float32)
        for place, crop in zip(views, crops, strict=True):
            self.normalise.in_place(place.copy_(crop))
        return views

    def _staged(self, crops: Iterator[Tensor], n: int) -> Tensor:
        """Crops from host memory on the device. Of two pinned rooms one is filled while the other is still copied."""
        if self.device.type != "cuda":
            return torch.stack(list(crops)).to(self.device)
        rooms = self._pinned.setdefault(n, deque(PinnedBuffer(n, self.size) for _ in range(2)))
        rooms.rotate()
        return rooms[0].send(crops, self.device)

    def _room(self, n: int, dtype: torch.dtype) -> Tensor:
        """Host memory for n crops: the last call's if it may be reused."""
        if self.reuse and n in self._rooms:
            return self._rooms[n]
        room = torch.empty(n, 3, self.size, self.size, dtype=dtype)
        if self.reuse:
            self._rooms[n] = room
        return room
