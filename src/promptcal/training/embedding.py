"""Embeddings of images by a network in evaluation mode."""

import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from torch import Tensor

from promptcal.data import ImageSet, StreamedView, View
from promptcal.data.loading import view_of
from promptcal.data.store import check_readable, decode
from promptcal.errors import PromptCALWarning, WeightsError
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.runtime.device import device_context
from promptcal.runtime.distributed import ALONE, Group
from promptcal.runtime.progress import show_progress

_IMAGES_AT_ONCE = 2048  # images decoded at a time, fewer if they are large
_PIXELS_AT_ONCE = 2**29

_BATCH = 256
_VALUES = 3 * 2**19  # of the patch tokens of a batch: memory of larger ones is freed and cleared for each layer

ReadEmbeddings = Callable[[PromptedViT, Tensor], Tensor]


def inference_batch_size(vit: PromptedViT) -> int:
    """How many images the network embeds at a time."""
    if next(vit.parameters()).device.type == "cuda":
        return _BATCH
    values = vit.backbone.patch_embed.num_patches * vit.backbone.num_features
    return max(1, min(_BATCH, _VALUES // values))


def class_token(vit: PromptedViT, views: Tensor) -> Tensor:
    return vit(views).cls


@torch.no_grad()
def embed(
    network: DiscoveryNetwork | PromptedViT,
    view: View | StreamedView,
    images: Tensor,
    *,
    batch_size: int | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
    group: Group = ALONE,
    read: ReadEmbeddings = class_token,
) -> Tensor:
    """L2-normalised embeddings of the centre views, on the network's device; by default those of the class token.

    In a group, each process embeds its part of the images and gets the embeddings of all of them.
    """
    own = images[group.equal_part(len(images))]
    was_training = network.training
    network.eval()
    vit = network if isinstance(network, PromptedViT) else network.vit
    batch_size = batch_size or inference_batch_size(vit)
    features: list[Tensor] = []
    for views in view.centres(_in_full_batches(own, batch_size) if vit.is_compiled else own, batch_size):
        features.append(torch.nn.functional.normalize(read(vit, views).float(), dim=-1))
        on_progress(min(len(images), group.world * sum(map(len, features))))
    network.train(was_training)
    return group.all_gather(torch.cat(features)[: len(own)])[: len(images)]


def _in_full_batches(images: Tensor, batch_size: int) -> Tensor:
    """Repeat some images to fill the last batch: a compiled network is compiled again for another batch size."""
    missing = -len(images) % batch_size
    return torch.cat([images, images[torch.arange(missing) % len(images)]])


def embed_images(
    vit: PromptedViT,
    images: ImageSet,
    resize: int,
    *,
    skip_unreadable: bool,
    console: Console,
    read: ReadEmbeddings = class_token,
) -> tuple[list[int], Tensor]:
    """Positions of the readable images and their L2-normalised embeddings; images are decoded in chunks."""
    device = next(vit.parameters()).device
    positions: list[int] = []
    features = []
    left_out: list[tuple[str, str]] = []
    with show_progress(console, "reading and embedding", len(images)) as show:
        at_once = max(1, min(_IMAGES_AT_ONCE, _PIXELS_AT_ONCE // resize**2))
        for first in range(0, len(images), at_once):
            part = images.subset(range(first, min(first + at_once, len(images))))
            store, kept, faults = decode(part, resize, skip_unreadable=skip_unreadable, part=True)
            left_out += faults
            positions += [first + i for i in kept]
            if kept:
                view = view_of(store, *vit.preprocessing, resize=resize, device=device)
                with device_context(device, vit.compute_dtype):
                    features.append(embed(vit, view, torch.arange(len(store)), read=read))
            show(first + len(part))
    check_readable(left_out, len(positions), skip_unreadable)
    if left_out:
        names = "; ".join(f"{name} ({reason})" for name, reason in left_out)
        message = f"{len(left_out)} unreadable images were skipped: {names}"
        warnings.warn(message, PromptCALWarning, stacklevel=2)
    embeddings = torch.cat(features)
    if not torch.isfinite(embeddings).all():
        raise WeightsError("the network gives embeddings that are not finite; its weights are damaged, so fit again")
    return positions, embeddings
