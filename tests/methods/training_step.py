"""One step of training, to be compared with a loss that a test writes from the equations of the publication."""

import copy
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from timm.models.vision_transformer import VisionTransformer

from promptcal.data import ImageStore, View, build_sampler
from promptcal.methods import METHODS, load_config
from promptcal.methods.base import StageContext
from promptcal.models import PromptedViT
from promptcal.runtime.seeds import derive_seed
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.embedding import embed
from promptcal.training.loop import Loop, TrainingData
from promptcal.training.recorder import Recorder
from promptcal.training.stage import Batch

LABELS = torch.tensor([0, -1, 1, 0, -1, -1, 1, -1])
N_CLASSES, N_KNOWN, DECAY = 5, 2, 0.05
SETTINGS = (
    "model.head_hidden=12",
    "model.head_bottleneck=6",
    "model.head_prototypes=20",
    f"data.batch_size={len(LABELS)}",
    "data.sampling=natural",
    f"optim.weight_decay={DECAY}",
)


@dataclass(frozen=True)
class Step:
    """The network before and after a step, its batch, its loss, and the images that it was drawn from."""

    before: Any
    after: Any
    batch: Batch
    loss: float
    view: View

    def check(self, expected_loss, lr, is_decayed=lambda name: True, finish=lambda name, value: value):
        """Compare the loss, and each parameter with ``p - lr (gradient + decay p)``; ``finish`` changes the result."""
        assert self.loss == pytest.approx(expected_loss.item(), rel=1e-4)
        parameters = {n: p for n, p in self.before.trained_parameters().items() if p.requires_grad}
        gradients = torch.autograd.grad(expected_loss, list(parameters.values()), allow_unused=True)
        assert sum(g is not None and bool(g.any()) for g in gradients) > 10
        after = dict(self.after.named_parameters())
        for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
            if gradient is None:
                assert torch.equal(after[name], p), name
                continue
            direction = gradient + (DECAY * p if is_decayed(name) else 0.0)
            expected = finish(name, p - lr * direction)
            torch.testing.assert_close(
                (after[name] - p) / lr, (expected - p) / lr, rtol=2e-3, atol=5e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def one_step(folder, name, *overrides):
    """An epoch of one step by the training loop, on 8 images of which half are labelled."""
    config = load_config(values={"n_classes": N_CLASSES, "method": name}, overrides=[*SETTINGS, *overrides])
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=0)
    for block in vit.blocks:  # the initial weights are so small that all embeddings are nearly equal
        for weight in (block.attn.qkv.weight, block.attn.proj.weight, block.mlp.fc1.weight, block.mlp.fc2.weight):
            weight.data.mul_(10)
    method = METHODS[name](config)
    network = method.build_network(PromptedViT(vit, prompts=config.model.prompts), N_KNOWN)
    images = np.random.default_rng(0).integers(0, 256, (len(LABELS), 12, 12, 3)).astype(np.uint8)
    view = View(ImageStore.of(list(images)), *network.vit.preprocessing)
    unlabelled = (LABELS < 0).nonzero().flatten()
    context = StageContext(N_KNOWN, None, False, False, None, None, lambda: embed(network, view, unlabelled))
    sampler = build_sampler(config.data.sampling, LABELS >= 0, config.data.batch_size)
    data = TrainingData(view, LABELS, sampler, augment=method.augment)
    loop = Loop(
        method.stage(name, network, context),
        data,
        epochs=1,
        optim=config.optim,
        seed=0,
        checkpoints=Checkpoints(folder),
        recorder=Recorder(folder, Console(quiet=True), tensorboard=False),
        parameter_groups=method.parameter_groups(network),
    )
    order = sampler.epoch(derive_seed(0, name, "order", 0))
    (batch,) = data.batches(order, [derive_seed(0, name, "step", 0, 0)])
    before = copy.deepcopy(network)
    loop.run()
    loss = json.loads((folder / "metrics.jsonl").read_text())["loss"]
    return Step(before, network, batch, loss, view)


def cosine(a, b):
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def softmax(values):
    """Of a list of scalars."""
    powers = [value.exp() for value in values]
    return [power / sum(powers) for power in powers]


def entropy_of_mean(rows):
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return -sum(m * m.log() for m in means)


def contrastive_by_loops(z, labels):
    """GCD's unsupervised (temperature 1) and supervised (0.07) terms of unit rows, the second views at i + B."""
    n = len(labels)
    unsupervised, supervised = [], []
    for i in range(n):
        others = [k for k in range(n) if k != i]
        total = sum((z[i] @ z[k]).exp() for k in others)
        unsupervised.append(-((z[i] @ z[(i + n // 2) % n]).exp() / total).log())
    labelled = [i for i in range(n) if labels[i] >= 0]
    for i in labelled:
        others = [k for k in labelled if k != i]
        total = sum((z[i] @ z[k] / 0.07).exp() for k in others)
        positives = [k for k in others if labels[k] == labels[i]]
        supervised.append(-sum(((z[i] @ z[k] / 0.07).exp() / total).log() for k in positives) / len(positives))
    return sum(unsupervised) / n, sum(supervised) / len(labelled)
