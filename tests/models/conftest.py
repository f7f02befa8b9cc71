"""Tiny ViTs with large random weights, so that every weight affects the output."""

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 0}


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randomise(module, seed=0):
    """Draw every parameter: timm initialises biases and layer scale at or near 0, which would hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


@pytest.fixture
def tiny_vit():
    """``tiny_vit(seed=0, **options)``: timm's plain VisionTransformer, 16 px, 4 patches, 3 blocks, 32 wide."""
    return lambda seed=0, **options: randomise(VisionTransformer(**{**TINY, **options}), seed)


@pytest.fixture
def tiny_timm():
    """``tiny_timm(name, seed=0, **options)``: a named timm model, 2 patches by 2, 3 blocks, 32 wide."""

    def build(name, seed=0, **options):
        patch = timm.create_model(name, depth=1, embed_dim=32, num_heads=2, num_classes=0).patch_embed.patch_size[0]
        sizes = {"img_size": 2 * patch, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 0}
        sizes["dynamic_img_size"] = False
        return randomise(timm.create_model(name, **{**sizes, **options}), seed)

    return build


@pytest.fixture
def images():
    """``images(model, n=2)``: random input of the size a ViT takes."""

    def draw(vit, n=2, seed=1):
        return torch.randn(n, 3, *vit.patch_embed.img_size, generator=torch.Generator().manual_seed(seed))

    return draw
