"""A network small enough for loops, and a batch for it."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional as F

from promptcal.methods import METHODS, load_config
from promptcal.methods.base import StageContext
from promptcal.models import PromptedViT
from promptcal.training.stage import Batch

N_CLASSES, N_KNOWN, DIM = 5, 2, 16


@pytest.fixture
def stage_of():
    """The stage of a method on a tiny ViT, with any settings."""

    def make(name, *overrides, n_classes=N_CLASSES, n_known=N_KNOWN, stage=None):
        settings = ("model.head_hidden=12", "model.head_bottleneck=6", "model.head_prototypes=20", *overrides)
        config = load_config(values={"n_classes": n_classes, "method": name}, overrides=settings)
        torch.manual_seed(0)
        vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=DIM, depth=2, num_heads=2, num_classes=0)
        method = METHODS[name](config)
        network = method.build_network(PromptedViT(vit, prompts=config.model.prompts), n_known)
        unlabelled = lambda: F.normalize(torch.randn(9, DIM, generator=torch.Generator().manual_seed(3)), dim=1)  # noqa: E731
        context = StageContext(n_known, None, False, False, None, None, unlabelled)
        return method.stage(stage or name, network, context)

    return make


@pytest.fixture
def batch_of():
    """Two views of as many images as there are labels."""

    def make(labels, seed=0, indices=None):
        generator = torch.Generator().manual_seed(seed)
        views = torch.randn(2 * len(labels), 3, 8, 8, generator=generator)
        images = torch.arange(len(labels)) if indices is None else torch.tensor(indices)
        return Batch(views, torch.tensor(labels).repeat(2), images.repeat(2), torch.Generator().manual_seed(seed))

    return make
