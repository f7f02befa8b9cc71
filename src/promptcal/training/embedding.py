"""Embeddings of stored images by a network at rest."""

from collections.abc import Callable

import torch
from torch import Tensor

from promptcal.data import StreamedView, View
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.runtime.distributed import ALONE, Group


@torch.no_grad()
def embed(
    network: DiscoveryNetwork | PromptedViT,
    view: View | StreamedView,
    images: Tensor,
    *,
    batch_size: int = 256,
    on_progress: Callable[[int], None] = lambda done: None,
    group: Group = ALONE,
) -> Tensor:
    """L2-normalised class-token embeddings of the centre views, on the network's device.

    Of a group of processes each embeds its part of the images, and all get all of them.
    """
    own = images[group.equal_part(len(images))]
    was_training = network.training
    network.eval()
    vit = network if isinstance(network, PromptedViT) else network.vit
    features: list[Tensor] = []
    for views in view.centres(_in_full_batches(own, batch_size) if vit.is_compiled else own, batch_size):
        features.append(torch.nn.functional.normalize(vit(views).cls.float(), dim=1))
        on_progress(min(len(images), group.world * sum(map(len, features))))
    network.train(was_training)
    return group.all_gather(torch.cat(features)[: len(own)])[: len(images)]


def _in_full_batches(images: Tensor, batch_size: int) -> Tensor:
    """With some images again at the end: a compiled network would be compiled anew for a batch of another size."""
    missing = -len(images) % batch_size
    return torch.cat([images, images[torch.arange(missing) % len(images)]])
