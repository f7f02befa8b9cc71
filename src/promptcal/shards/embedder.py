"""Embeddings of decoded crops by a network in evaluation mode."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from promptcal.data.views import Normalise
from promptcal.errors import WeightsError
from promptcal.models import PromptedViT
from promptcal.runtime.device import device_context
from promptcal.shards.decoders import CropSize, DecodedChunk
from promptcal.training.embedding import class_token, inference_batch_size

_BLOCK = 8192  # rows that are written at a time


class EmbeddedBlock(NamedTuple):
    """Ids, paths and L2-normalised embeddings (float32) of some images."""

    ids: list[str]
    paths: list[str]
    features: Tensor


class _Batch:
    """Images for the network; their crops are copied once, from the processes that decode into this memory."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self.ids: list[str] = []
        self.paths: list[str] = []

    @property
    def crops(self) -> Tensor:
        return self._buffer[: len(self.ids)]

    @property
    def is_full(self) -> bool:
        return len(self.ids) == len(self._buffer)

    def add(self, chunk: DecodedChunk, first: int) -> int:
        """Add images of a chunk from ``first`` on, as many as fit; returns how many were added."""
        n = min(len(self._buffer) - len(self.ids), len(chunk.ids) - first)
        part = slice(first, first + n)
        self._buffer[len(self.ids) : len(self.ids) + n] = chunk.crops[part]
        self.ids += chunk.ids[part]
        self.paths += chunk.paths[part]
        return n


class Embedder:
    """A ViT, and the size of the images for it."""

    def __init__(self, vit: PromptedViT, resize: int) -> None:
        self.vit = vit.eval()
        self.device = next(vit.parameters()).device
        self.width: int = vit.backbone.num_features
        image_size, mean, std = vit.preprocessing
        self.size = CropSize(resize, image_size)
        self._batch_size = inference_batch_size(vit)
        self._normalise = Normalise(mean, std, self.device)

    def blocks(self, chunks: Iterable[DecodedChunk], faults: list[tuple[str, str]]) -> Iterator[EmbeddedBlock]:
        """The embeddings of all chunks in order; unreadable images are added to ``faults``.

        A GPU computes while the next crops are decoded: its results are fetched once for each block.
        """
        ids: list[str] = []
        paths: list[str] = []
        features: list[Tensor] = []
        for batch in self._batches(chunks, faults):
            features.append(self._embed(batch.crops))
            ids += batch.ids
            paths += batch.paths
            if len(ids) >= _BLOCK:
                yield EmbeddedBlock(ids, paths, _checked(torch.cat(features)))
                ids, paths, features = [], [], []
        if ids:
            yield EmbeddedBlock(ids, paths, _checked(torch.cat(features)))

    def _batches(self, chunks: Iterable[DecodedChunk], faults: list[tuple[str, str]]) -> Iterator[_Batch]:
        """Full batches, so that a batch depends only on the images of the shard."""
        batch = self._empty_batch()
        for chunk in chunks:
            faults += chunk.faults
            first = 0
            while first < len(chunk.ids):
                first += batch.add(chunk, first)
                if batch.is_full:
                    yield batch
                    batch = self._empty_batch()
        if batch.ids:
            yield batch

    def _empty_batch(self) -> _Batch:
        # pinned memory is reused by PyTorch when the copy from it has ended
        is_cuda = self.device.type == "cuda"
        shape = (self._batch_size, self.size.crop, self.size.crop, 3)
        return _Batch(torch.empty(shape, dtype=torch.uint8, pin_memory=is_cuda))

    @torch.no_grad()
    def _embed(self, crops: Tensor) -> Tensor:
        with device_context(self.device, self.vit.compute_dtype):
            crops = crops.to(self.device, non_blocking=self.device.type == "cuda")
            views = self._normalise(crops.permute(0, 3, 1, 2).contiguous())
            return torch.nn.functional.normalize(class_token(self.vit, views).float(), dim=-1)


def _checked(features: Tensor) -> Tensor:
    if not torch.isfinite(features).all():
        raise WeightsError("the network gives embeddings that are not finite; its weights are damaged, so fit again")
    return features
