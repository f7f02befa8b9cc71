"""Squares of images enlarged to one size, pixels between stored ones being weighted by nearness (bilinear)."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from promptcal.data.store import ImageStore


class Between(NamedTuple):
    """Places along one side of each image: between two stored pixels, ``share`` of the way to the second; n x size."""

    first: Tensor
    second: Tensor
    share: Tensor

    def mixed(self, lines: Tensor) -> Tensor:
        """The same places between the rows of a matrix: n x size x its columns."""
        return torch.lerp(lines[self.first], lines[self.second], self.share.unsqueeze(2))


def between_pixels(start: Tensor, extent: Tensor, length: Tensor, size: int, mirrored: Tensor | None = None) -> Between:
    """The centres of ``size`` equal parts of the pixels from ``start`` on over ``extent``, of ``length`` there are."""
    steps = torch.arange(size, device=start.device) + 0.5
    if mirrored is not None:
        steps = torch.where(mirrored.unsqueeze(1), steps.flip(0), steps)
    places = start.unsqueeze(1) + steps * (extent / size).unsqueeze(1) - 0.5
    last = (length - 1).unsqueeze(1)
    places = places.clamp(min=0).minimum(last)
    first = places.long()
    return Between(first, (first + 1).minimum(last), places - first)


def zoomed(store: ImageStore, index: Tensor, rows: Between, columns: Between) -> Tensor:
    """uint8 n x 3 x size x size of the images ``index``, in four gathers."""
    widths = store.widths[index].unsqueeze(1)
    planes = torch.arange(3, device=store.device) * (store.heights[index] * store.widths[index]).unsqueeze(1)
    starts = (store.offsets[index].unsqueeze(1) + planes)[:, :, None, None]

    def line(row: Tensor) -> Tensor:
        at = starts + (row * widths)[:, None, :, None]
        first, second = (store.pixels[at + column[:, None, None, :]].float() for column in columns[:2])
        return first.lerp_(second, columns.share[:, None, None, :])

    return _rounded(line(rows.first).lerp_(line(rows.second), rows.share[:, None, :, None]))


def each_zoomed(store: ImageStore, index: Tensor, rows: Between, columns: Between) -> Iterator[Tensor]:
    """The same one by one, which on a CPU is faster."""
    for place, (top, bottom, down, left, right, across) in zip(
        index.tolist(), zip(*rows, *columns, strict=True), strict=True
    ):
        image = store.view(place)
        lines = torch.lerp(image[:, top].float(), image[:, bottom].float(), down.unsqueeze(1))
        yield _rounded(torch.lerp(lines[:, :, left], lines[:, :, right], across))


def _rounded(values: Tensor) -> Tensor:
    return values.round_().to(torch.uint8)
