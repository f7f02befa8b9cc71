"""Faster computations of two parts of timm's ViT with the same result.

Patches are embedded by a matrix product instead of a strided convolution, which is slow on GPUs. The last block
computes only the tokens that are used, 3 of 202. A module with a hook, or not of plain timm, is called itself.
"""

from typing import Any

from timm.layers import PatchEmbed
from timm.layers.format import Format
from timm.models.vision_transformer import Attention, Block
from torch import Tensor, nn
from torch.nn import functional as F


def embed_patches(patch_embed: Any, images: Tensor) -> Tensor:
    """``patch_embed(images)`` (n x patches x dim)."""
    if not _is_plain(patch_embed, images):
        return patch_embed(images)
    weight, (patch_height, patch_width) = patch_embed.proj.weight, patch_embed.patch_size
    n, channels, height, width = images.shape
    rows, columns = height // patch_height, width // patch_width
    patches = images.reshape(n, channels, rows, patch_height, columns, patch_width).permute(0, 2, 4, 1, 3, 5)
    pixels = patches.reshape(n, rows * columns, channels * patch_height * patch_width)
    return patch_embed.norm(F.linear(pixels, weight.flatten(1), patch_embed.proj.bias))


def _is_plain(patch_embed: Any, images: Tensor) -> bool:
    proj = getattr(patch_embed, "proj", None)
    return (
        type(patch_embed) is PatchEmbed
        and type(proj) is nn.Conv2d
        and tuple(proj.kernel_size) == tuple(proj.stride) == tuple(patch_embed.patch_size)
        and (tuple(proj.padding), tuple(proj.dilation), proj.groups) == ((0, 0), (1, 1), 1)
        and _has_no_hooks(patch_embed, proj)
        and patch_embed.flatten
        and patch_embed.output_fmt == Format.NCHW
        and tuple(patch_embed.img_size or ()) == tuple(images.shape[2:])
        and all(side % patch == 0 for side, patch in zip(images.shape[2:], patch_embed.patch_size, strict=True))
    )


def can_forward_prefix(block: Any) -> bool:
    return (
        type(block) is Block
        and type(block.attn) is Attention
        and type(block.attn.qkv) is nn.Linear
        and getattr(block.attn, "gate", None) is None
        and _has_no_hooks(block, block.attn, block.attn.qkv)
    )


def _has_no_hooks(*modules: nn.Module) -> bool:
    """Whether none of the modules has a forward or backward hook."""
    return not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules)


def forward_prefix_tokens(block: Block, tokens: Tensor, read: int) -> Tensor:
    """The first ``read`` tokens of ``block(tokens)``."""
    attention = _attend(block.attn, block.norm1(tokens), read)
    prefix = tokens[:, :read] + block.drop_path1(block.ls1(attention))
    return prefix + block.drop_path2(block.ls2(block.mlp(block.norm2(prefix))))


def _attend(attn: Attention, tokens: Tensor, read: int) -> Tensor:
    """Attention of the first ``read`` tokens to all tokens."""
    n, count, _ = tokens.shape
    heads, head_dim = attn.num_heads, attn.head_dim
    inner = heads * head_dim
    weight, bias = attn.qkv.weight, attn.qkv.bias
    query = F.linear(tokens[:, :read], weight[:inner], None if bias is None else bias[:inner])
    key_value = F.linear(tokens, weight[inner:], None if bias is None else bias[inner:])
    query = attn.q_norm(query.reshape(n, read, heads, head_dim).transpose(1, 2))
    key, value = key_value.reshape(n, count, 2, heads, head_dim).permute(2, 0, 3, 1, 4).unbind(0)
    dropout = attn.attn_drop.p if attn.training else 0.0
    output = F.scaled_dot_product_attention(query, attn.k_norm(key), value, dropout_p=dropout)
    output = attn.norm(output.transpose(1, 2).reshape(n, read, inner))
    return attn.proj_drop(attn.proj(output))
