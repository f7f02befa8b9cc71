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
from promptcal.training.embedding import class_token

_BATCH = 256  # images that the network sees at a time
_BLOCK = 8192  # rows that are written at a time


class EmbeddedBlock(NamedTuple):
    """Ids, paths and L2-normalised embeddings (float32) of some images."""

    ids: list[str]
    paths: list[str]
    features: Tensor


class Embedder:
    """A ViT, and the size of the images for it."""

    def __init__(self, vit: PromptedViT, resize: int) -> None:
        self.vit = vit.eval()
        self.device = next(vit.parameters()).device
        self.width: int = vit.backbone.num_features
        image_size, mean, std = vit.preprocessing
        self.size = CropSize(resize, image_size)
        self._normalise = Normalise(mean, std, self.device)

    def blocks(self, chunks: Iterable[DecodedChunk], faults: list[tuple[str, str]]) -> Iterator[EmbeddedBlock]:
        """The embeddings of all chunks in order; unreadable images are added to ``faults``.

        A GPU computes while the next crops are decoded: its results are fetched once for each block.
        """
        ids: list[str] = []
        paths: list[str] = []
        features: list[Tensor] = []
        for batch in _batches(chunks, faults):
            features.append(self._embed(batch.crops))
            ids += batch.ids
            paths += batch.paths
            if len(ids) >= _BLOCK:
                yield EmbeddedBlock(ids, paths, _checked(torch.cat(features)))
                ids, paths, features = [], [], []
        if ids:
            yield EmbeddedBlock(ids, paths, _checked(torch.cat(features)))

    @torch.no_grad()
    def _embed(self, crops: Tensor) -> Tensor:
        if self.device.type == "cuda":
            crops = crops.pin_memory().to(self.device, non_blocking=True)
        with device_context(self.device, self.vit.compute_dtype):
            views = self._normalise(crops.to(self.device).permute(0, 3, 1, 2).contiguous())
            return torch.nn.functional.normalize(class_token(self.vit, views).float(), dim=-1)


def _batches(chunks: Iterable[DecodedChunk], faults: list[tuple[str, str]]) -> Iterator[DecodedChunk]:
    """Chunks joined to full batches, so that a batch depends only on the images of the shard."""
    waiting: list[DecodedChunk] = []
    n = 0
    for chunk in chunks:
        faults += chunk.faults
        waiting.append(chunk)
        n += len(chunk.ids)
        while n >= _BATCH:
            whole = _joined(waiting)
            yield _part(whole, slice(None, _BATCH))
            waiting, n = [_part(whole, slice(_BATCH, None))], n - _BATCH
    if n:
        yield _joined(waiting)


def _joined(chunks: list[DecodedChunk]) -> DecodedChunk:
    ids, paths = ([v for c in chunks for v in values(c)] for values in (lambda c: c.ids, lambda c: c.paths))
    return DecodedChunk(ids, paths, torch.cat([chunk.crops for chunk in chunks]), [])


def _part(chunk: DecodedChunk, rows: slice) -> DecodedChunk:
    return DecodedChunk(chunk.ids[rows], chunk.paths[rows], chunk.crops[rows], [])


def _checked(features: Tensor) -> Tensor:
    if not torch.isfinite(features).all():
        raise WeightsError("the network gives embeddings that are not finite; its weights are damaged, so fit again")
    return features
