"""Attention of the class token, against the softmax written out."""

import numpy as np
import pytest
import torch

from promptcal.models import PromptedViT
from promptcal.models.attention import class_attention, has_class_attention
from promptcal.models.prompted_vit import insert_prompts


def by_hand(vit, images):
    """All blocks but the last, then query, keys and softmax in loops."""
    backbone = vit.backbone
    with torch.no_grad():
        tokens, _ = vit._embed(images)
        for i, block in enumerate(backbone.blocks):
            if vit.prompts is not None:
                tokens = insert_prompts(tokens, vit.prompts[i], backbone.num_prefix_tokens, is_first=i == 0)
            if i < len(backbone.blocks) - 1:
                tokens = block(tokens)
        tokens = block.norm1(tokens).double().numpy()
        weight, bias = block.attn.qkv.weight.double().numpy(), block.attn.qkv.bias.double().numpy()
    heads, dim = block.attn.num_heads, vit.dim
    wide = dim // heads
    first = backbone.num_prefix_tokens + vit.n_prompts
    found = np.zeros((len(images), heads, tokens.shape[1] - first))
    for n, sequence in enumerate(tokens):
        for head in range(heads):
            own = slice(head * wide, (head + 1) * wide)
            query = weight[:dim][own] @ sequence[0] + bias[:dim][own]
            raw = [
                np.exp(query @ (weight[dim : 2 * dim][own] @ token + bias[dim : 2 * dim][own]) / np.sqrt(wide))
                for token in sequence
            ]
            shares = np.array(raw) / sum(raw)
            found[n, head] = shares[first:] / shares[first:].sum()
    return found


@pytest.mark.parametrize("prompts", [0, 3])
def test_class_attention_is_the_softmax_over_patches(prompts):
    torch.manual_seed(0)
    vit = PromptedViT("vit_tiny_patch4_32.promptcal", prompts, supervised=min(2, prompts))
    images = torch.randn(2, 3, 32, 32)
    vit.train()
    found = class_attention(vit, images)
    assert vit.training  # the mode is restored
    assert found.shape == (2, vit.backbone.blocks[-1].attn.num_heads, 64)
    vit.eval()
    assert np.allclose(found.numpy(), by_hand(vit, images), atol=1e-5)
    assert torch.allclose(found.sum(dim=-1), torch.ones(()))


def test_a_block_of_another_kind_is_an_error():
    vit = PromptedViT("vit_tiny_patch4_32.promptcal", 0)
    vit.backbone.blocks[-1] = torch.nn.Identity()
    assert not has_class_attention(vit)
    with pytest.raises(ValueError, match="not timm's plain one"):
        class_attention(vit, torch.zeros(1, 3, 32, 32))
