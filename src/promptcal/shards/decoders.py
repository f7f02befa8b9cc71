"""Decoding of images into centre crops: in this process, or in other processes of this machine."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from promptcal.data.decoding import UnreadableImage
from promptcal.errors import TryAgainError
from promptcal.runtime.children import begin_child
from promptcal.shards.shard_sources import ImageChunk


@dataclass(frozen=True, eq=False)
class CropSize:
    """Images are resized to this shorter side, then a square of ``crop`` pixels is cut from the centre."""

    resize: int
    crop: int


@dataclass(frozen=True, eq=False)
class DecodedChunk:
    """The readable images of a chunk, uint8 n x crop x crop x 3; ``faults`` has id and reason of the others."""

    ids: list[str]
    paths: list[str]
    crops: Tensor
    faults: list[tuple[str, str]]


def decode_chunk(chunk: ImageChunk, size: CropSize) -> DecodedChunk:
    """The pixels of `promptcal predict`, but for the rounding of few values of images that become smaller.

    A `TryAgainError` if an image at a URL cannot be reached at this moment.
    """
    kept: list[int] = []
    faults: list[tuple[str, str]] = []
    crops = torch.empty((len(chunk.ids), size.crop, size.crop, 3), dtype=torch.uint8)
    for i, name in enumerate(chunk.ids):
        try:
            crops[len(kept)] = centre_crop(chunk.images.usable_image(i), size)
        except UnreadableImage as fault:
            if isinstance(fault.__cause__, TryAgainError):  # nothing is known about the image
                raise fault.__cause__ from None
            faults.append((name, str(fault)))
            continue
        kept.append(i)
    ids, paths = ([values[i] for i in kept] for values in (chunk.ids, chunk.paths))
    return DecodedChunk(ids, paths, crops[: len(kept)], faults)


def centre_crop(image: Image.Image, size: CropSize) -> Tensor:
    """The centre of the resized image, uint8 crop x crop x 3.

    PyTorch reduces an image three times as fast as Pillow; the rounding of less than 1 % of the values differs.
    """
    shorter = min(image.size)
    height, width = (size.resize if side == shorter else int(size.resize * side / shorter) for side in image.size[::-1])
    if shorter < size.resize:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image))
    if shorter > size.resize:
        planes = pixels.permute(2, 0, 1).unsqueeze(0)
        pixels = interpolate(planes, (height, width), mode="bicubic", antialias=True)[0].permute(1, 2, 0)
    top, left = (round((side - size.crop) / 2) for side in (height, width))
    return pixels[top : top + size.crop, left : left + size.crop]


class Decoders(Protocol):
    def map(self, chunks: Iterable[ImageChunk], size: CropSize) -> Iterator[DecodedChunk]:
        """The decoded chunks in order."""
        ...


class InlineDecoders(Decoders):
    """Decodes in this process."""

    def map(self, chunks: Iterable[ImageChunk], size: CropSize) -> Iterator[DecodedChunk]:
        return (decode_chunk(chunk, size) for chunk in chunks)


class ProcessDecoders(Decoders):
    """Decodes in ``n`` processes that live as long as this object; crops come back through shared memory."""

    def __init__(self, n: int) -> None:
        self.n = n
        # forked before the model is loaded, so that a process starts at once and shares what is imported
        context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
        self._pool = ProcessPoolExecutor(n, context, _begin, (os.getpid(),))
        for started in [self._pool.submit(os.getpid) for _ in range(n)]:
            started.result()

    def map(self, chunks: Iterable[ImageChunk], size: CropSize) -> Iterator[DecodedChunk]:
        def submit(chunk: ImageChunk) -> Future[DecodedChunk]:
            return self._pool.submit(decode_chunk, chunk, size)

        return in_order(chunks, submit, lambda future: future.result(), 3 * self.n)


def _begin(parent: int) -> None:
    begin_child(parent)
    torch.set_num_threads(1)  # each core has its own process


def in_order(
    items: Iterable[Any], submit: Callable[[Any], Any], result: Callable[[Any], Any], most: int
) -> Iterator[Any]:
    """The results of ``submit`` in order, with at most ``most`` items submitted at a time."""
    waiting: deque[Any] = deque()
    for item in items:
        waiting.append(submit(item))
        if len(waiting) >= most:
            yield result(waiting.popleft())
    while waiting:
        yield result(waiting.popleft())


def decoders(n: int) -> Decoders:
    """``n`` processes, or none for a single core."""
    return ProcessDecoders(n) if n > 1 else InlineDecoders()
