"""PromptedViT against VPT-deep written out token by token."""

import copy

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from promptcal.errors import WeightsError
from promptcal.models import PromptedViT
from promptcal.models.tokens import read_tokens, token_names

PLAIN = {
    "plain": {},
    "layer scale": {"init_values": 1e-5},
    "registers with positions": {"reg_tokens": 4},
    "registers without positions": {"reg_tokens": 4, "no_embed_class": True},
    "norm before the blocks": {"pre_norm": True},
    "average pooling": {"global_pool": "avg"},
    "normalised queries": {"qk_norm": True},
}
NAMED = [
    "vit_small_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_clip_224",
    "deit_tiny_distilled_patch16_224", "eva_giant_patch14_224", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3",
    "vit_small_patch16_rope_224", "vit_small_patch16_rope_mixed_224", "vit_small_patch16_rope_mixed_ape_224",
    "vit_pe_core_tiny_patch16_384",
]  # fmt: skip


def with_random_prompts(vit, prompts=5, supervised=2, **options):
    model = PromptedViT(vit, prompts, supervised, **options).eval()
    if prompts:
        nn.init.normal_(model.prompts, generator=torch.Generator().manual_seed(2))
    return model


def vpt_deep(vit, prompts, images):
    """VPT-deep token by token; rotary attention treats the prompts as prefix tokens, which it does not rotate."""
    vit = copy.deepcopy(vit)
    patches = list(vit.patch_embed(images).unbind(dim=1))
    own_tokens = [vit.cls_token, getattr(vit, "dist_token", None), vit.reg_token]
    prefix = [t[0, j].expand(len(images), -1) for t in own_tokens if t is not None for j in range(t.shape[1])]
    if vit.pos_embed is not None:
        positions = list(vit.pos_embed[0])
        if not vit.no_embed_class:
            prefix = [token + positions.pop(0) for token in prefix]
        patches = [token + position for token, position in zip(patches, positions, strict=True)]
    prefix, patches = [vit.norm_pre(t) for t in prefix], [vit.norm_pre(t) for t in patches]
    rope = vit.rope.get_embed() if getattr(vit, "rope", None) is not None else None
    for i, block in enumerate(vit.blocks):
        shown = [prompt.expand(len(images), -1) for prompt in prompts[i]]
        options = {}
        if rope is not None:
            block.attn.num_prefix_tokens += len(shown)
            options["rope"] = rope[i] if vit.rope_mixed else rope
        output = list(block(torch.stack(prefix + shown + patches, dim=1), **options).unbind(dim=1))
        first, end = len(prefix), len(prefix) + len(shown)
        prefix, seen, patches = output[:first], output[first:end], output[end:]
    norm = nn.Sequential(vit.norm, vit.fc_norm)  # one of the two is the identity
    return [norm(t) for t in prefix], [norm(t) for t in seen], [norm(t) for t in patches]


def assert_vpt_deep(model, images):
    prefix, prompts, patches = vpt_deep(model.backbone, model.prompts, images)
    with torch.no_grad():
        tokens = model(images)
        every = model.forward_tokens(images)
    torch.testing.assert_close(every, torch.stack(prefix + prompts + patches, dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tokens.cls, prefix[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tokens.prompt, (prompts[0] + prompts[1]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [*PLAIN, *NAMED])
def test_every_vit_is_vpt_deep(kind, tiny_vit, tiny_timm, images):
    vit = tiny_vit(**PLAIN[kind]) if kind in PLAIN else tiny_timm(kind)
    assert_vpt_deep(with_random_prompts(vit), images(vit))


@pytest.mark.parametrize("name", NAMED)
def test_without_prompts_the_class_token_is_timms(name, tiny_timm, images):
    vit = tiny_timm(name)
    model = PromptedViT(vit, prompts=0)
    with torch.no_grad():
        tokens = model(images(vit))
        plain = vit.fc_norm(vit.forward_features(images(vit)))[:, 0]
    assert model.prompts is None
    assert tokens.prompt is None
    torch.testing.assert_close(tokens.cls, plain, rtol=1e-5, atol=1e-5)  # the order of summation differs


def test_every_prompt_of_every_block_changes_the_class_token(tiny_vit, images):
    vit = tiny_vit()
    model = with_random_prompts(vit)
    before = model(images(vit)).cls
    for block in range(3):
        for prompt in range(5):
            changed = copy.deepcopy(model)
            changed.prompts.data[block, prompt] *= -1
            assert not torch.allclose(changed(images(vit)).cls, before, atol=1e-4), (block, prompt)


def test_rotary_prompts_are_interchangeable(tiny_timm, images):
    """Prompts that are not rotated have no position: their order does not change the class token."""
    vit = tiny_timm("vit_small_patch16_dinov3")
    model, reordered = with_random_prompts(vit), with_random_prompts(vit)
    reordered.prompts.data = model.prompts.data.flip(1)
    torch.testing.assert_close(model(images(vit)).cls, reordered(images(vit)).cls, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("supervised", [1, 2, 5])
@pytest.mark.parametrize("pooling", ["mean", "mean-of-normalised"])
def test_prompt_embedding_is_the_mean_of_the_supervised_outputs(supervised, pooling, tiny_vit, images):
    vit = tiny_vit()
    model = with_random_prompts(vit, supervised=supervised, prompt_pooling=pooling)
    prompts = torch.stack(vpt_deep(vit, model.prompts, images(vit))[1][:supervised])
    if pooling == "mean-of-normalised":
        prompts = prompts / prompts.norm(dim=2, keepdim=True)
    torch.testing.assert_close(model(images(vit)).prompt, prompts.mean(dim=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "mean-of-normalised"])
@pytest.mark.parametrize("kind", ["plain", "registers with positions", "vit_small_patch16_dinov3"])
def test_tokens_by_name_are_those_of_vpt_deep(kind, pooling, tiny_vit, tiny_timm, images):
    """[P] is exactly the network's own; the unsupervised prompts are those that are not in it."""
    vit = tiny_vit(**PLAIN[kind]) if kind in PLAIN else tiny_timm(kind)
    model = with_random_prompts(vit, prompt_pooling=pooling)
    assert token_names(model) == ["cls", "prompts", "unsupervised-1", "unsupervised-2", "unsupervised-3"]
    _, prompts, _ = vpt_deep(vit, model.prompts, images(vit))
    with torch.no_grad():
        own = model(images(vit))
        both = read_tokens(model, images(vit), ["prompts", "cls"])
        every = read_tokens(model, images(vit), token_names(model))
    assert torch.equal(both, torch.stack([own.prompt, own.cls], dim=1))
    torch.testing.assert_close(every[:, :2], both.flip(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(every[:, 2:], torch.stack(prompts[2:], dim=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "supervised", "names"),
    [(0, 0, ["cls"]), (2, 2, ["cls", "prompts"]), (2, 0, ["cls", "unsupervised-1", "unsupervised-2"])],
)
def test_a_network_has_only_the_tokens_of_its_prompts(prompts, supervised, names, tiny_vit, images):
    vit = tiny_vit()
    model = with_random_prompts(vit, prompts, supervised)
    assert token_names(model) == names
    assert read_tokens(model, images(vit), names).shape == (len(images(vit)), len(names), model.dim)


@pytest.mark.parametrize("name", ["vit_small_patch16_224", "vit_small_patch14_reg4_dinov2", "vit_small_patch16_dinov3"])
def test_dynamic_input_size_equals_the_model_resized(name, tiny_timm, images):
    dynamic, resized = tiny_timm(name, dynamic_img_size=True), tiny_timm(name)
    size = resized.patch_embed.patch_size[0]
    resized.set_input_size(img_size=(3 * size, 3 * size))
    views = images(resized)
    with torch.no_grad():
        tokens, expected = with_random_prompts(dynamic)(views), with_random_prompts(resized)(views)
    torch.testing.assert_close(tokens.cls, expected.cls, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tokens.prompt, expected.prompt, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["test_vit", "vit_tiny_patch4_32.promptcal"])
def test_by_name_at_another_input_size(name):
    model = PromptedViT(name, image_size=64, pretrained=False).eval()
    assert model.preprocessing.image_size == 64
    assert model(torch.randn(1, 3, 64, 64)).cls.shape == (1, model.dim)
    with pytest.raises(WeightsError, match=f"{name} cannot be built at 3 px"):
        PromptedViT(name, image_size=3, pretrained=False)


@pytest.mark.parametrize("train_blocks", [0, 1, 2, 3])
def test_only_prompts_and_the_last_blocks_are_trained(train_blocks, tiny_vit):
    vit = tiny_vit(reg_tokens=1)
    model = PromptedViT(vit, train_blocks=train_blocks)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    last = {f"backbone.blocks.{i}.{k}" for i in range(3 - train_blocks, 3) for k, _ in vit.blocks[i].named_parameters()}
    assert trained == {"prompts"} | last


@pytest.mark.parametrize("kind", ["plain", "vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_224"])
def test_gradient_reaches_the_prompts_of_every_block_and_only_trained_parameters(kind, tiny_vit, tiny_timm, images):
    vit = tiny_vit() if kind == "plain" else tiny_timm(kind)
    model = with_random_prompts(vit)
    model(images(vit)).cls.square().sum().backward()
    assert (model.prompts.grad.abs().amax(dim=2) > 0).all()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_prompts_start_small_and_random():
    torch.manual_seed(0)
    prompts = PromptedViT("test_vit", pretrained=False).prompts
    assert prompts.shape == (6, 5, 64)
    assert 0.018 < prompts.std() < 0.022
    assert prompts.abs().max() <= 2


@pytest.mark.parametrize(
    ("backbone", "name", "image_size"),
    [
        ("resnet18", "resnet18", None), ("resnet18", "resnet18", 64),
        ("vit_relpos_small_patch16_224", "vit_relpos_small_patch16_224", None),
        (nn.Linear(2, 2), "Linear", None), (timm.create_model("resnet18"), "ResNet", None),
    ],
)  # fmt: skip
def test_what_is_not_a_vit_is_rejected(backbone, name, image_size):
    with pytest.raises(WeightsError, match=f"{name} is not a vision transformer that supports prompts"):
        PromptedViT(backbone, image_size=image_size, pretrained=False)


def test_a_vit_without_class_token_is_refused(tiny_vit):
    with pytest.raises(WeightsError, match="VisionTransformer has no class token"):
        PromptedViT(tiny_vit(class_token=False, global_pool="avg"))
    with pytest.raises(WeightsError, match="test_vit2 has no class token"):
        PromptedViT("test_vit2", pretrained=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": 1}, "supervised must lie"), ({"supervised": -1}, "supervised must lie"),
        ({"prompts": -1}, "supervised must lie"), ({"train_blocks": 4}, "train_blocks must lie"),
        ({"prompt_pooling": "max"}, "prompt_pooling must be"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(options, message, tiny_vit):
    with pytest.raises(ValueError, match=message):
        PromptedViT(tiny_vit(), **options)


def test_half_precision_input_gives_half_precision_tokens(tiny_vit, images):
    vit = tiny_vit()
    model = with_random_prompts(vit)
    with torch.no_grad():
        full = model(images(vit)).cls
        with torch.autocast("cpu", torch.bfloat16):
            half = model(images(vit)).cls
    assert F.cosine_similarity(full, half.float()).min() > 0.99
