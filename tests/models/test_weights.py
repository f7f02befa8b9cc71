"""load_weights: a checkpoint in any known layout gives the network that it was saved from."""

import argparse
import os
import pickle
import random
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.layers.mlp import SwiGLUPacked

from promptcal.errors import WeightsError
from promptcal.models import ProjectionNetwork, PromptedViT, load_weights


def save(state, path):
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def prefixed(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9))


def dino_checkpoint(state):
    """Everything that DINO's training code saves: a student with other weights, optimiser, arguments."""
    head = {"head.mlp.0.weight": noise(4, 4), "head.last_layer.weight_v": noise(4, 4)}
    student = prefixed("backbone.", {name: -value for name, value in state.items()}) | head
    return {
        "student": prefixed("module.", student),
        "teacher": prefixed("backbone.", state) | head,
        "optimizer": {"state": {0: {"step": 1, "exp_avg": noise(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "args": argparse.Namespace(arch="vit_small", lr=0.0005, output_dir="."),
        "epoch": 1,
        "dino_loss": {"center": noise(1, 4)},
        "center": noise(1, 4),
    }


CLASSIFIER = {"head.weight": noise(10, 32), "head.bias": noise(10)}
MAE_DECODER = {
    "decoder_pos_embed": noise(1, 5, 8), "decoder_blocks.0.norm1.weight": noise(8), "mask_token": noise(1, 1, 8),
}  # fmt: skip
PLAIN_CHECKPOINTS = {
    "timm.safetensors": lambda state: state | CLASSIFIER,
    "timm.pth": lambda state: state | CLASSIFIER,
    "dino.pth": dino_checkpoint,
    "dino_student.pth": lambda state: {"student": prefixed("module.backbone.", state) | {"module.head.a": noise(4)}},
    "ibot.pth": lambda state: {"state_dict": state | {"masked_embed": noise(1, 32), "head.a": noise(4)}, "epoch": 2},
    "mae.pth": lambda state: {"model": state | MAE_DECODER},
}


def assert_same_function(model, source, images):
    with torch.no_grad():
        torch.testing.assert_close(model(images), source(images), rtol=1e-5, atol=1e-5)


def assert_refused(model, path, *fragments):
    """A WeightsError of one sentence names the file, and the model is unchanged."""
    before = state_of(model)
    with pytest.raises(WeightsError) as refusal:
        load_weights(model, path)
    message = str(refusal.value)
    assert str(path) in message
    assert "\n" not in message
    assert "\x1b" not in message
    assert ". " not in message.replace(str(path), "")
    for fragment in fragments:
        assert fragment in message
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("file", PLAIN_CHECKPOINTS)
def test_checkpoint_of_a_plain_vit(file, tmp_path, tiny_vit, images):
    source, model = tiny_vit(1), tiny_vit(2)
    load_weights(model, save(PLAIN_CHECKPOINTS[file](state_of(source)), tmp_path / file))
    assert_same_function(model, source, images(model))


def test_backbone_file_does_not_change_the_prompts(tmp_path, tiny_vit, images):
    source, model = tiny_vit(1), PromptedViT(tiny_vit(2))
    before = model.prompts.detach().clone()
    load_weights(model, save(state_of(source), tmp_path / "timm.pth"))
    assert torch.equal(model.prompts, before)
    assert_same_function(model.backbone, source, images(source))


def test_backbone_with_an_unused_classifier_takes_a_file_without_one(tmp_path, tiny_vit, images):
    source, model = tiny_vit(1), tiny_vit(2, num_classes=7)
    classifier = state_of(model.head)
    load_weights(model, save(state_of(source) | {"head.mlp.0.weight": noise(3, 3)}, tmp_path / "dino.pth"))
    assert torch.equal(model.head.weight, classifier["weight"])
    model.reset_classifier(0)
    assert_same_function(model, source, images(source))


def dinov2_style(source, *, chunk=None, mask_token=True):
    """A timm DINOv2's weights as Meta's code would save them."""
    state = state_of(source)
    if "reg_token" in state:
        position = noise(1, 1, 32)
        state["register_tokens"] = state.pop("reg_token")
        state["cls_token"] = state["cls_token"] - position
        state["pos_embed"] = torch.cat([position, state["pos_embed"]], dim=1)
    if mask_token:
        state["mask_token"] = noise(1, 32)
    if isinstance(source.blocks[0].mlp, SwiGLUPacked.func):
        state = {k.replace("mlp.fc1.", "mlp.w12.").replace("mlp.fc2.", "mlp.w3."): v for k, v in state.items()}
    if chunk:
        state = {
            k.replace(f"blocks.{i}.", f"blocks.{i // chunk}.{i}.") if k.startswith(f"blocks.{i}.") else k: v
            for k, v in state.items()
            for i in ([int(k.split(".")[1])] if k.startswith("blocks.") else [-1])
        }
    return state


def dinov2_training_style(source):
    heads = {"dino_head.mlp.0.weight": noise(4, 4), "ibot_head.mlp.0.weight": noise(4, 4)}
    return {"teacher": prefixed("backbone.", dinov2_style(source, chunk=1)) | heads}


def dinov3_style(source):
    """A timm DINOv3's weights as Meta's code would save them."""
    state = {
        k.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma").replace("reg_token", "storage_tokens"): v
        for k, v in state_of(source).items()
    } | {"mask_token": noise(1, 32), "rope_embed.periods": noise(4)}
    for i in range(3):
        bias = {kind: state.pop(f"blocks.{i}.attn.{kind}_bias", torch.zeros(32)) for kind in "qv"}
        state[f"blocks.{i}.attn.qkv.bias"] = torch.cat([bias["q"], torch.zeros(32), bias["v"]])
        state[f"blocks.{i}.attn.qkv.bias_mask"] = noise(96)
    return state


def clip_style(source):
    """A timm CLIP image tower as OpenAI's and OpenCLIP's code name it, beside a text tower."""
    names = {
        "patch_embed.proj.": "conv1.", "norm_pre.": "ln_pre.", "attn.qkv.": "attn.in_proj_", "mlp.fc1.": "mlp.c_fc.",
        "attn.proj.": "attn.out_proj.", "mlp.fc2.": "mlp.c_proj.", "norm1.": "ln_1.", "norm2.": "ln_2.",
        "blocks.": "transformer.resblocks.",
    }  # fmt: skip
    state = {"logit_scale": noise(1), "transformer.resblocks.0.ln_1.weight": noise(7), "visual.proj": noise(32, 9)}
    for key, value in state_of(source).items():
        if key in ("cls_token", "pos_embed"):
            renamed = {"cls_token": "class_embedding", "pos_embed": "positional_embedding"}[key]
            state[f"visual.{renamed}"] = value.reshape(-1, 32).squeeze(0)
            continue
        key = key.replace("norm.", "ln_post.") if key.startswith("norm.") else key
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        state[f"visual.{key}"] = value
    assert len(state) == len(source.state_dict()) + 3
    return state


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("vit_base_patch16_clip_224", clip_style),
        ("vit_base_patch16_clip_quickgelu_224", clip_style),
        ("vit_small_patch14_reg4_dinov2", dinov2_training_style),
        ("vit_small_patch16_dinov3", dinov3_style),
        ("vit_small_patch16_dinov3_qkvb", dinov3_style),
        ("vit_small_patch16_dinov3_qkvb", state_of),
        ("eva02_tiny_patch14_224", state_of),
        ("vit_small_patch16_rope_mixed_224", state_of),
    ],
)
def test_checkpoint_of_a_named_vit(name, style, tmp_path, tiny_timm, images, capsys):
    source, model = tiny_timm(name, 1), tiny_timm(name, 2)
    suffix = ".pth" if style in (dinov2_training_style, dinov3_style) else ".safetensors"
    load_weights(model, save(style(source), tmp_path / f"file{suffix}"))
    assert capsys.readouterr().out == ""
    assert_same_function(model, source, images(model))


@pytest.mark.parametrize("mask_token", [True, False])
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("kind", ["small_patch14", "small_patch14_reg4", "giant_patch14", "giant_patch14_reg4"])
def test_dinov2_checkpoint(kind, chunk, mask_token, tmp_path, tiny_timm, images):
    name = f"vit_{kind}_dinov2"
    source, model = tiny_timm(name, 1), tiny_timm(name, 2)
    state = dinov2_style(source, chunk=chunk, mask_token=mask_token)
    assert state.keys() != source.state_dict().keys() or not (chunk or mask_token)
    load_weights(model, save(state, tmp_path / "dinov2.pth"))
    assert_same_function(model, source, images(model))


def published_style(source):
    """A PromptedViT's weights as the published PromptCAL code saves them."""
    state = state_of(source.backbone)
    positions = state["pos_embed"]
    of_prompts = torch.zeros(1, source.n_prompts, source.dim)
    state["pos_embed"] = torch.cat([positions[:, :1], of_prompts, positions[:, 1:]], dim=1)
    return state | {"prompt_tokens": source.prompts.detach().clone()}


def network_state(vit):
    return state_of(ProjectionNetwork(vit, hidden=8, bottleneck=4, prototypes=16))


PROMPTED_CHECKPOINTS = {
    "network.safetensors": network_state,
    "network.pth": network_state,
    "vit.safetensors": state_of,
    "published.pth": published_style,
    "published_wrapped.pth": lambda vit: {"state_dict": prefixed("module.", published_style(vit))},
}


@pytest.mark.parametrize("file", PROMPTED_CHECKPOINTS)
def test_checkpoint_of_a_prompted_vit(file, tmp_path, tiny_vit, images):
    source, model = PromptedViT(tiny_vit(1)), PromptedViT(tiny_vit(2))
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    path = save(PROMPTED_CHECKPOINTS[file](source), tmp_path / file)
    for _ in range(2):  # loading twice gives the same
        load_weights(model, path)
        assert torch.equal(model.prompts, source.prompts)
        assert_same_function(model, source, images(source.backbone))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trained


def test_published_promptcal_checkpoint_at_another_input_size(tmp_path, tiny_vit):
    source, model = PromptedViT(tiny_vit(1)), PromptedViT(tiny_vit(2, img_size=24))
    load_weights(model, save(published_style(source), tmp_path / "promptcal.pth"))
    expected = resample_abs_pos_embed(source.backbone.pos_embed, [3, 3], num_prefix_tokens=1)
    torch.testing.assert_close(model.backbone.pos_embed.data, expected.data)


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 4, "no_embed_class": True}], ids=["class position", "none"])
def test_positions_of_another_input_size_are_resampled(options, tmp_path, tiny_vit):
    source, model = tiny_vit(1, img_size=32, **options), tiny_vit(2, img_size=16, **options)
    load_weights(model, save(state_of(source), tmp_path / "large.pth"))
    source.set_input_size(img_size=(16, 16))
    torch.testing.assert_close(model.pos_embed.data, source.pos_embed.data)
    assert torch.equal(model.cls_token, source.cls_token)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_half_precision_file_loads_into_a_full_precision_model(dtype, suffix, tmp_path, tiny_vit):
    source, model = PromptedViT(tiny_vit(1)).to(dtype), PromptedViT(tiny_vit(2))
    load_weights(model, save(state_of(source), tmp_path / f"half{suffix}"))
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, source.state_dict()[name].float()), name


# errors


@pytest.mark.parametrize("file", ["cut.safetensors", "cut.pth", "legacy.pth"])
@pytest.mark.parametrize("kept", [0, 5, 1000, -300, -20])
def test_truncated_file_is_refused(kept, file, tmp_path, tiny_vit):
    path, state = tmp_path / file, state_of(tiny_vit(1))
    if file == "legacy.pth":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    else:
        save(state, path)
    path.write_bytes(path.read_bytes()[:kept])
    assert_refused(tiny_vit(), path, "not a readable weight file")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_garbage_is_refused(suffix, tmp_path, tiny_vit):
    path, vit, draw = tmp_path / f"garbage{suffix}", tiny_vit(), random.Random(0)
    # pickle opcodes after a valid start make the reader fail in every way it can
    for start in (b"", b"\x80\x02", b"PK\x03\x04", b"<html>", b"\x80\x02}q", b"\x80\x02("):
        for _ in range(30):
            path.write_bytes(start + draw.randbytes(60))
            assert_refused(vit, path, "not a readable weight file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert_refused(vit, path, "not a readable weight file")


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_does_not(tmp_path, tiny_vit):
    sprung = tmp_path / "sprung"
    path = save(state_of(tiny_vit(1)) | {"trap": Trap(sprung)}, tmp_path / "trap.pth")
    assert_refused(tiny_vit(), path, "mkdir", "holds only tensors")
    path.write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    assert_refused(tiny_vit(), path)
    assert not sprung.exists()


def test_a_missing_file_and_a_pickled_module_are_refused(tmp_path, tiny_vit):
    for path in (tmp_path / "absent.pth", tmp_path):
        assert_refused(tiny_vit(), path, "does not exist")
    assert_refused(tiny_vit(), save(tiny_vit(1), tmp_path / "module.pth"), "holds only tensors")


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), {}, {"epoch": 1}, {"model": {}}, {"model": {"a": 1}}])
def test_a_file_without_a_state_dict_is_refused(content, tmp_path, tiny_vit):
    assert_refused(tiny_vit(), save(content, tmp_path / "other.pth"))


@pytest.mark.parametrize(
    "options",
    [
        {"embed_dim": 48}, {"embed_dim": 48, "img_size": 32}, {"patch_size": 4}, {"depth": 2}, {"depth": 4},
        {"mlp_ratio": 2}, {"reg_tokens": 4}, {"init_values": 0.1}, {"in_chans": 1}, {"qkv_bias": False},
        {"pos_embed": "none"},
    ],
    ids=str,
)  # fmt: skip
def test_another_architecture_is_refused(options, tmp_path, tiny_vit):
    path = save(state_of(tiny_vit(1, **options)), tmp_path / "other.safetensors")
    assert_refused(tiny_vit(), path, "does not fit VisionTransformer")
    assert_refused(PromptedViT(tiny_vit()), path, "does not fit VisionTransformer")


def test_a_rotary_file_does_not_fit_a_plain_vit_nor_the_other_way(tmp_path, tiny_vit, tiny_timm):
    plain, rotary = tiny_vit(), tiny_timm("vit_small_patch16_dinov3")
    assert_refused(plain, save(state_of(rotary), tmp_path / "rotary.pth"), "does not fit VisionTransformer")
    assert_refused(rotary, save(state_of(plain), tmp_path / "plain.pth"), "does not fit Eva")


def test_missing_and_unexpected_keys_are_named(tmp_path, tiny_vit):
    state = state_of(tiny_vit(1))
    del state["blocks.1.norm2.bias"]
    assert_refused(
        tiny_vit(), save(state, tmp_path / "missing.pth"), "1 of its weights are missing", "blocks.1.norm2.bias"
    )
    state = state_of(tiny_vit(1)) | {"blocks.1.adapter.weight": noise(3)}
    assert_refused(tiny_vit(), save(state, tmp_path / "extra.pth"), "1 are unknown to it", "blocks.1.adapter.weight")


@pytest.mark.parametrize("style", [published_style, state_of])
@pytest.mark.parametrize("prompts", [0, 2, 7])
def test_another_number_of_prompts_is_refused(style, prompts, tmp_path, tiny_vit):
    path = save(style(PromptedViT(tiny_vit(1))), tmp_path / "five.pth")
    assert_refused(PromptedViT(tiny_vit(2), prompts, 1), path, "5 prompts in each of 3 blocks", "prompts=5")
    assert_refused(tiny_vit(2), path, "5 prompts in each of 3 blocks")


@pytest.mark.parametrize(
    ("style", "damage"),
    [
        (published_style, lambda state: state.pop("pos_embed")),
        (published_style, lambda state: state.update(prompt_tokens=state["prompt_tokens"].flatten())),
        (published_style, lambda state: state.update(pos_embed=state["pos_embed"][:, :3])),
        (state_of, lambda state: state.pop("backbone.norm.bias")),
    ],
    ids=["no positions", "flat prompts", "too few positions", "no norm.bias"],
)
def test_damaged_checkpoint_of_a_prompted_vit_is_refused(style, damage, tmp_path, tiny_vit):
    state = style(PromptedViT(tiny_vit(1)))
    damage(state)
    assert_refused(PromptedViT(tiny_vit(2)), save(state, tmp_path / "damaged.pth"))
