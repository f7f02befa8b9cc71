"""Arrays of a run directory, checked when they are read: a value that was edited or damaged is one sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.discovery.heads import LinearHead
from promptcal.errors import RunError
from promptcal.runtime import files
from promptcal.runtime.arrays import read_array
from promptcal.runtime.free_memory import free_host_memory
from promptcal.runtime.json_model import damaged

_BLOCK = 4096  # rows that are checked at a time
_LARGEST_VALUE = 1e15  # of an embedding, so that products of embeddings are finite


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, all finite."""
    try:
        tensors = files.read_safetensors(file)
    except OSError as error:
        raise RunError(f"{file} cannot be read ({error}); fit again with --overwrite") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
            raise damaged(file, f"{name} has values that are not finite")
    return tensors


class StoredClusters(NamedTuple):
    """The mean embedding of each cluster, the network's output that stands for it, and the trained read-out."""

    centroids: Tensor
    columns: Tensor
    head: LinearHead | None


def read_clusters(file: Path, n_clusters: int, width: int, *, has_head: bool) -> StoredClusters:
    tensors = read_tensors(file)

    def read(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        found = tensors.get(name)
        if found is None or tuple(found.shape) != shape or found.dtype != dtype:
            raise RunError(f"{file} does not fit its run ({name}); fit again with --overwrite")
        return found

    centroids = read("centroids", (n_clusters, width))
    columns = read("columns", (n_clusters,), torch.int64)
    if not torch.equal(columns.sort().values, torch.arange(n_clusters)):
        raise damaged(file, "columns")
    if not has_head:
        return StoredClusters(centroids, columns, None)
    head = LinearHead(read("head_weight", (n_clusters, width)), read("head_bias", (n_clusters,)))
    return StoredClusters(centroids, columns, head)


def map_embeddings(file: Path, n_images: int) -> np.memmap:
    """The embedding of each image, float32 and finite."""
    embeddings = _open_embeddings(file, n_images)
    for _ in _blocks(file, n_images):
        pass
    return embeddings


def read_embeddings(file: Path, n_images: int) -> np.ndarray:
    """`map_embeddings` in memory."""
    found = np.empty(_open_embeddings(file, n_images).shape, dtype=np.float32)
    for first, block in _blocks(file, n_images):
        found[first : first + len(block)] = block
    return found


def _open_embeddings(file: Path, n_images: int) -> np.memmap:
    try:
        embeddings = read_array(file)
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error}); fit again") from error
    if embeddings.ndim != 2 or len(embeddings) != n_images or embeddings.dtype != np.float32 or not embeddings.size:
        found = f"{embeddings.dtype} of shape {embeddings.shape}"
        raise RunError(f"{file} has {found} for {n_images} images instead of float32; fit again")
    if embeddings.nbytes > free_host_memory():
        raise RunError(f"{file} has {embeddings.nbytes / 2**30:,.0f} GB, which is more than the free memory; fit again")
    return embeddings


def _blocks(file: Path, n_images: int) -> Iterator[tuple[int, np.ndarray]]:
    """The position of each block and its embeddings, if all of them are usable numbers."""
    for first in range(0, n_images, _BLOCK):
        block = np.array(read_array(file)[first : first + _BLOCK])  # mapped again, so that no more is in memory
        if not np.isfinite(block).all():
            raise damaged(file, "it has values that are not finite")
        if np.abs(block).max() > _LARGEST_VALUE:
            raise damaged(file, "it has values that are too large")
        yield first, block
