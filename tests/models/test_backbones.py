"""Backbones by name: from the hub's cache, from the package, or a clear error."""

import json
import socket
import time
from functools import partial

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch.nn import functional as F

from promptcal.data import embedded_set
from promptcal.errors import WeightsError
from promptcal.models import EMBEDDED_BACKBONE, PromptedViT, create_backbone, preprocessing
from promptcal.models.backbones import offline_if_unreachable

HUB_NAME = "test_vit.r160_in1k"  # timm's smallest: 0.3 M parameters


def fill_cache(hf_home, name, state):
    """Write the layout of huggingface_hub: a ref that names a snapshot, and the files in it."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hf_home / "hub" / f"models--timm--{name}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text(json.dumps({"architecture": name.split(".")[0], "num_classes": 1000}))
    save_file(state, snapshot / "model.safetensors")


@pytest.fixture
def hub_gone(monkeypatch):
    """The hub refuses connections; the fixture is the list of attempts."""
    tried, connect = [], socket.create_connection

    def count(place, *args, **options):
        tried.append(place)
        return connect(place, *args, **options)

    with socket.socket() as taken:  # a port that is bound without listening refuses connections
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("promptcal.models.backbones._PAUSE", 0.1)
        monkeypatch.setattr("promptcal.models.backbones.getproxies", dict)
        monkeypatch.setattr("promptcal.models.backbones.socket.create_connection", count)
        yield tried


@pytest.mark.parametrize("offline", [False, True])
def test_without_hub_the_weights_come_from_the_cache_or_an_error_comes_soon(offline, hub_gone, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    started = time.monotonic()
    with pytest.raises(WeightsError) as refusal:
        create_backbone(HUB_NAME)
    assert time.monotonic() - started < 10
    message = str(refusal.value)
    assert "\n" not in message
    for fragment in (HUB_NAME, "HF_HOME", "(--set model.weights=FILE)", "`promptcal fit --preset quick`"):
        assert fragment in message
    assert ("127.0.0.1 cannot be reached: Connection refused); connect" in message) != offline
    assert len(hub_gone) == (0 if offline else 2)
    assert offline == constants.HF_HUB_OFFLINE
    source = timm.create_model(HUB_NAME, pretrained=False)
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter)
    fill_cache(tmp_path, HUB_NAME, source.state_dict())
    loaded = create_backbone(HUB_NAME).state_dict()
    assert loaded.keys() == source.state_dict().keys() - {"head.weight", "head.bias"}
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in loaded.items())


def test_the_hubs_client_connects_to_a_reachable_hub_or_a_proxy(hub_gone, monkeypatch):
    with socket.socket() as hub:
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        with offline_if_unreachable() as reason:
            assert (reason, constants.HF_HUB_OFFLINE) == (None, False)
    assert len(hub_gone) == 1
    monkeypatch.setattr("promptcal.models.backbones.getproxies", lambda: {"https": "http://proxy:3128"})
    with offline_if_unreachable() as reason:
        assert (reason, constants.HF_HUB_OFFLINE) == (None, False)
    assert len(hub_gone) == 1


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("vit_bse_patch16_224.dino", "vit_base_patch16_224"), ("vit_small_patch14_dinov22", "vit_small_patch14_dinov2"),
        ("eva02_tinny_patch14_224", "eva02_tiny_patch14_224"), ("vit_tiny_patch4_32.promtcal", EMBEDDED_BACKBONE),
        ("vit_base_patch16_224.dinno", "vit_base_patch16_224.dino"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pretrained", [True, False])
def test_a_typo_gets_a_suggestion(typo, meant, pretrained):
    with pytest.raises(WeightsError) as refusal:
        create_backbone(typo, pretrained=pretrained)
    assert repr(typo) in str(refusal.value)
    assert meant in str(refusal.value).partition("did you mean")[2]


def test_an_unknown_name_points_to_the_list():
    with pytest.raises(WeightsError, match=r"no model called 'xyzzy'; `timm\.list_models\(\)`"):
        create_backbone("xyzzy")


def test_a_model_without_published_weights_is_an_error(monkeypatch):
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=1))
    name = "vit_small_patch16_18x2_224"
    assert timm.get_pretrained_cfg(name).hf_hub_id is None
    with pytest.raises(WeightsError, match=f"the weights of {name} could not be downloaded.*use `promptcal fit"):
        create_backbone(name)


IMAGENET, HALVES, CLIP = (0.485, 0.456, 0.406), (0.5, 0.5, 0.5), (0.48145466, 0.4578275, 0.40821073)


@pytest.mark.parametrize(
    ("name", "size", "mean"),
    [
        ("vit_base_patch16_224.dino", 224, IMAGENET),
        ("vit_base_patch14_dinov2.lvd142m", 518, IMAGENET),
        ("vit_base_patch14_reg4_dinov2.lvd142m", 518, IMAGENET),
        ("vit_base_patch16_dinov3.lvd1689m", 256, IMAGENET),
        ("vit_base_patch16_224.mae", 224, IMAGENET),
        ("vit_base_patch16_clip_quickgelu_224.openai", 224, CLIP),
        ("vit_base_patch16_224.augreg_in21k", 224, HALVES),
    ],
)
def test_the_backbones_of_the_ablation_page_take_prompts(name, size, mean, monkeypatch):
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=1, embed_dim=32, num_heads=2))
    assert preprocessing(create_backbone(name, pretrained=False))[:2] == (size, pytest.approx(mean))
    vit = PromptedViT(name, image_size=224, pretrained=False)
    with torch.no_grad():
        tokens = vit(torch.zeros(1, 3, 224, 224))
    assert (tokens.cls.shape, tokens.prompt.shape) == ((1, 32), (1, 32))


def test_preprocessing_is_that_of_the_backbone(tiny_vit):
    clip = timm.create_model("vit_base_patch16_clip_224", depth=1, embed_dim=32, num_heads=2, num_classes=0)
    assert preprocessing(clip)[:2] == (224, pytest.approx(CLIP))
    assert preprocessing(clip).std == pytest.approx((0.26862954, 0.26130258, 0.27577711))
    assert preprocessing(tiny_vit()) == (16, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_embedded_backbone_needs_no_network(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    backbone = create_backbone(EMBEDDED_BACKBONE)
    assert (backbone.embed_dim, len(backbone.blocks), preprocessing(backbone).image_size) == (192, 6, 32)
    assert backbone.norm.weight.std() > 0  # 1 everywhere before training


def normalised(images, vit):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - torch.tensor(vit.mean).view(3, 1, 1)) / torch.tensor(vit.std).view(3, 1, 1)


def neighbour_accuracy(features, labels, k=20):
    """Leave-one-out: the most frequent label among the k nearest other images."""
    cosines = F.normalize(features, dim=1) @ F.normalize(features, dim=1).T
    neighbours = labels[cosines.fill_diagonal_(-2).topk(k, dim=1).indices]
    return (neighbours.mode(dim=1).values == labels).float().mean().item()


@torch.no_grad()
@pytest.mark.parametrize(("split", "step", "size", "accuracy"), [("train", 3, 32, 0.8), ("test", 2, 40, 0.7)])
def test_embedded_backbone_separates_real_images_at_two_input_sizes(split, step, size, accuracy):
    data = embedded_set(split)
    vit = PromptedViT(EMBEDDED_BACKBONE, prompts=0, image_size=size).eval()
    pixels = F.interpolate(normalised(data.images[::step], vit.preprocessing), size, mode="bicubic")
    features = torch.cat([vit(batch).cls for batch in pixels.split(100)])
    assert neighbour_accuracy(features, torch.from_numpy(data.labels[::step])) > accuracy
