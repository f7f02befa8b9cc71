"""The shortcuts against timm's own modules: outputs and gradients."""

import pytest
import torch
from torch.nn import functional as F

from promptcal.models import PromptedViT
from promptcal.models.shortcuts import can_forward_prefix, embed_patches, forward_prefix_tokens


@pytest.mark.parametrize("options", [{}, {"patch_size": 4}, {"img_size": (16, 24)}, {"pre_norm": True}])
def test_patches_by_a_product_are_those_of_the_convolution(tiny_vit, images, options):
    vit = tiny_vit(**options)
    views = images(vit)
    torch.testing.assert_close(embed_patches(vit.patch_embed, views), vit.patch_embed(views), rtol=1e-5, atol=1e-5)


def test_padded_patches_are_those_of_timm(tiny_vit):
    vit = tiny_vit(dynamic_img_size=True, dynamic_img_pad=True)
    views = torch.randn(2, 3, 20, 18)
    assert torch.equal(embed_patches(vit.patch_embed, views), vit.patch_embed(views))


@pytest.mark.parametrize("options", [{}, {"init_values": 0.1}, {"qk_norm": True}, {"qkv_bias": False}])
@pytest.mark.parametrize("read", [1, 3, 9])
def test_prefix_tokens_and_their_gradients_are_those_of_the_whole_block(tiny_vit, options, read):
    block = tiny_vit(**options).blocks[-1]
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(2, 9, 32, generator=generator, requires_grad=True)
    weights = torch.randn(2, read, 32, generator=generator)
    assert can_forward_prefix(block)
    found, gradients = [], []
    for output in (block(tokens)[:, :read], forward_prefix_tokens(block, tokens, read)):
        found.append(output)
        gradients.append(torch.autograd.grad((output * weights).sum(), [tokens, *block.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    for whole, short in zip(*gradients, strict=True):
        torch.testing.assert_close(short, whole, rtol=1e-3, atol=1e-4 * float(whole.abs().max()) + 1e-5)


def test_blocks_that_are_of_another_kind_changed_or_hooked_are_called_without_shortcut(tiny_vit, tiny_timm, images):
    for name in ("eva02_tiny_patch14_224", "vit_small_patch16_rope_224"):
        assert not can_forward_prefix(tiny_timm(name).blocks[-1])

    class Adapted(torch.nn.Linear):
        pass

    changed = tiny_vit().blocks[-1]
    changed.attn.qkv.__class__ = Adapted
    assert not can_forward_prefix(changed)

    watched, calls = tiny_vit(), []
    watched.blocks[-1].attn.register_forward_hook(lambda *given: calls.append(1))
    assert not can_forward_prefix(watched.blocks[-1])
    PromptedViT(watched, 3, 2)(images(watched))
    assert calls == [1]

    overlapping = tiny_vit().patch_embed
    overlapping.proj.stride = (4, 4)
    views = torch.randn(2, 3, 16, 16)
    assert torch.equal(embed_patches(overlapping, views), overlapping(views))


def test_bf16_is_close_to_float32_and_does_not_change_the_parameters(tiny_vit, images):
    model = PromptedViT(tiny_vit(), 3, 2)
    views = images(model.backbone)
    exact = model(views).cls.detach()
    model.set_compute_dtype(torch.bfloat16)
    rough = model(views).cls.detach()
    assert not torch.equal(rough, exact)
    assert float(F.cosine_similarity(rough.float(), exact).min()) > 0.999
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        model.set_compute_dtype(torch.float16)
