"""Embeddings of stored images by a network at rest."""

from collections.abc import Callable

import torch
from torch import Tensor

from promptcal.data import StreamedView, View
from promptcal.models import PromptedViT, TrainedNetwork


@torch.no_grad()
def embed(
    network: TrainedNetwork | PromptedViT,
    view: View | StreamedView,
    images: Tensor,
    *,
    batch_size: int = 256,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """L2-normalised class-token embeddings of the centre views, on the network's device."""
    was_training = network.training
    network.eval()
    vit = network if isinstance(network, PromptedViT) else network.vit
    features = []
    for views in view.centres(images, batch_size):
        features.append(torch.nn.functional.normalize(vit(views).cls.float(), dim=1))
        on_progress(sum(map(len, features)))
    network.train(was_training)
    return torch.cat(features)
