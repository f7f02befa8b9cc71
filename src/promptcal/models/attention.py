"""Attention of the class token to the patches, in the last block."""

import torch
from torch import Tensor

from promptcal.models.prompted_vit import PromptedViT
from promptcal.models.shortcuts import can_forward_prefix


def has_class_attention(vit: PromptedViT) -> bool:
    """Whether the last block is timm's plain attention block and the ViT has a class token."""
    return can_forward_prefix(vit.backbone.blocks[-1]) and vit.backbone.num_prefix_tokens > 0


@torch.no_grad()
def class_attention(vit: PromptedViT, images: Tensor) -> Tensor:
    """Attention of the class token to each patch (n x heads x patches), normalised to sum to 1 over the patches.

    Attention to the class token, registers and prompts is left out.
    """
    if not has_class_attention(vit):
        raise ValueError("the last block of this backbone is not timm's plain one, so its attention cannot be read")
    block = vit.backbone.blocks[-1]
    attention = block.attn
    normed_inputs: list[Tensor] = []
    # with `forward_prefix_tokens` the block itself is not called, but its first norm always is
    hook = block.norm1.register_forward_hook(lambda module, inputs, output: normed_inputs.append(output))
    was_training = vit.training
    vit.eval()
    try:
        vit.forward_tokens(images)
    finally:
        hook.remove()
        vit.train(was_training)
    tokens = normed_inputs[0].float()
    n, count, _ = tokens.shape
    query, key, _ = attention.qkv(tokens).reshape(n, count, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    query, key = attention.q_norm(query[:, :, :1]), attention.k_norm(key)
    weights = torch.softmax(query @ key.transpose(-2, -1) * attention.scale, dim=-1).squeeze(2)
    patches = weights[:, :, vit.backbone.num_prefix_tokens + vit.n_prompts :]
    return patches / patches.sum(dim=-1, keepdim=True)
