"""How many images the network embeds at a time."""

import pytest
import timm
import torch

from promptcal.data import View, embedded_set
from promptcal.data.store import ImageStore
from promptcal.models import PromptedViT
from promptcal.training.embedding import embed, inference_batch_size


def build(size, width):
    vit = timm.models.VisionTransformer(
        img_size=size, patch_size=4, embed_dim=width, depth=1, num_heads=2, num_classes=0
    )
    return PromptedViT(vit, prompts=0, train_blocks=0)


@pytest.mark.parametrize(("size", "width", "expected"), [(32, 192, 128), (64, 192, 32), (32, 384, 64), (8, 16, 256)])
def test_a_batch_on_a_cpu_is_small_enough_for_its_memory_to_be_used_again(size, width, expected):
    assert inference_batch_size(build(size, width)) == expected


def test_the_batch_size_does_not_change_the_embeddings():
    vit, seen = build(64, 192), []
    view = View(ImageStore.of(list(embedded_set("train").images[:50])), 64, (0.5,) * 3, (0.5,) * 3, resize=64)
    found = embed(vit, view, torch.arange(50), on_progress=seen.append)
    assert seen == [32, 50]
    assert torch.allclose(found, embed(vit, view, torch.arange(50), batch_size=50), atol=1e-5)
