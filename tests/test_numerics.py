"""No NaN from extreme temperatures, empty masks, copies or blank images, in any precision."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from promptcal.config.schema import LossConfig
from promptcal.data import ImageSet, View
from promptcal.data.store import decode
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.errors import ConfigError
from promptcal.methods import METHODS, load_config
from promptcal.methods.base import StageContext
from promptcal.methods.losses import contrastive_loss, semi_supervised_terms
from promptcal.methods.promptcal.graph.affinity_graph import GraphSettings, affinity_graph
from promptcal.methods.promptcal.graph.pairs import neighbour_positives, ranking_positives, sample_negatives
from promptcal.models import projected_cosine
from promptcal.models.head import Projection
from promptcal.training.stage import Batch

PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]
TEMPERATURES = [1e-45, 1e-6, 0.07, 1.0, 1e6]


def plain_loss(similarity, positives, anchors, temperature):
    """The definition, in Python's floats; temperatures too small for float32 are as good as 1e-30."""
    losses = []
    for row, chosen, allowed in zip(similarity.tolist(), positives.tolist(), anchors.tolist(), strict=True):
        logits = [s / max(temperature, 1e-30) for s in row]
        own = [logit for logit, is_positive in zip(logits, chosen, strict=True) if is_positive]
        if not own:
            losses.append(0.0)
            continue
        among = [logit for logit, is_anchor in zip(logits, allowed, strict=True) if is_anchor]
        log_total = max(among) + math.log(sum(math.exp(logit - max(among)) for logit in among))
        losses.append(sum(log_total - logit for logit in own) / len(own))
    return losses


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_loss_is_finite_and_right(dtype, temperature):
    generator = torch.Generator().manual_seed(0)
    similarity = (2 * torch.rand(6, 9, generator=generator) - 1).to(dtype)
    similarity[1] = 1.0  # copies
    anchors = torch.rand(6, 9, generator=generator) < 0.7
    positives = anchors & (torch.rand(6, 9, generator=generator) < 0.4)
    anchors[0] = positives[0] = False  # nothing at all
    positives[2], anchors[2] = False, True  # no positive
    anchors[3] = positives[3] = True  # nothing but positives
    similarity.requires_grad_()
    found = contrastive_loss(similarity, positives, anchors, temperature, reduction="none")
    expected = plain_loss(similarity.detach().double(), positives, anchors, temperature)
    rounding = 1e-5 + 1e-7 / max(temperature, 1e-30)  # of cosines divided by it
    torch.testing.assert_close(found.detach().double(), torch.tensor(expected).double(), rtol=1e-4, atol=rounding)
    if temperature >= (1e-4 if dtype == torch.float16 else 1e-6):  # a gradient is as steep as 1 / temperature
        (found / len(found)).sum().backward()
        assert similarity.grad.isfinite().all()


def test_temperatures_that_would_overflow_are_refused():
    for method, key in (
        ("gcd", "loss.self_temperature"),
        ("simgcd", "simgcd.teacher_temperature"),
        ("uno", "uno.epsilon"),
    ):
        with pytest.raises(ConfigError, match=key):
            load_config(values={"n_classes": 3, "method": method}, overrides=[f"{key}=1e-7"])


@pytest.mark.parametrize("labels", [[-1] * 8, [0] * 8, [0, -1, 1, -1] * 2])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_heads_whose_output_is_0(dtype, labels):
    """Bottlenecks of 0 and copies: cosines and their gradients are finite."""
    bottleneck = torch.zeros(8, 4, dtype=dtype)
    bottleneck[2:] = torch.tensor([0.5, -0.5, 0.5, 0.5], dtype=dtype)
    bottleneck.requires_grad_()
    prototypes = torch.nn.functional.normalize(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    projection = Projection(bottleneck, prototypes.to(dtype))
    cosines = projected_cosine(projection, projection)
    assert cosines[2:, 2:].detach().allclose(torch.ones(6, 6), atol=1e-3)
    assert cosines[:2].detach().abs().max() == 0
    terms = semi_supervised_terms(cosines, torch.tensor(labels), LossConfig())
    (terms.self_supervised + terms.supervised).backward()
    beyond_half = 2 if dtype == torch.float16 else 0  # at 0 a cosine is steep: 1e12, too much for half precision
    assert bottleneck.grad[beyond_half:].isfinite().all()


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("kind", ["all the same", "all zero", "two points"])
@pytest.mark.parametrize("k", [1, 7, 100])
def test_affinities_among_copies(kind, dtype, k):
    nodes = torch.zeros(24, 6, dtype=dtype)
    if kind != "all zero":
        nodes[:, 0] = 1.0
    if kind == "two points":
        nodes[::2] = nodes[::2].roll(1, dims=1)
    graph = affinity_graph(nodes[:8], nodes[8:], GraphSettings(k, 0.5))
    assert graph.threshold.isfinite()
    if kind == "two points" and k == 7:  # enough copies of each: no edge between the two points
        apart = (torch.arange(8).unsqueeze(1) - torch.arange(24)) % 2 == 1
        assert not (graph.positives & apart).any()
    negatives = sample_negatives(graph.positives, 5)
    assert not (negatives & graph.positives).any()
    assert neighbour_positives(nodes[:8], nodes[8:], k).sum(dim=1).tolist() == [min(k, 23)] * 8
    assert ranking_positives(nodes[:8], nodes[8:], 3).shape == (8, 24)


@pytest.mark.parametrize("distinct", [1, 3])
@pytest.mark.parametrize("labelled", [False, True])
def test_k_means_of_fewer_points_than_clusters(distinct, labelled):
    points = np.repeat(np.eye(6, dtype=np.float32)[:distinct], 10, axis=0)
    y = np.where(np.arange(len(points)) < 2, 0, -1) if labelled else None
    found = SemiSupervisedKMeans(5, n_init=4, random_state=0).fit(points, y)
    assert np.isfinite(found.cluster_centers_).all()
    assert set(found.labels_) <= set(range(5))
    assert found.inertia_ == pytest.approx(KMeans(distinct, n_init=4, random_state=0).fit(points).inertia_, abs=1e-6)


@pytest.fixture(scope="module")
def poor_images():
    """Blank images, and copies of one that is not."""
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    black, white = (np.full((8, 32, 32, 3), value, dtype=np.uint8) for value in (0, 255))
    return np.concatenate([black, white, noise.repeat(8, axis=0)])


TERMS = ("self", "supervised", "affinity")
SMALL = ("model.image_size=8", "model.backbone=vit_tiny_patch4_32.promptcal", "model.head_hidden=16")
SMALL += ("model.head_bottleneck=8", "model.head_prototypes=32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("method", "temperature"),
    [
        ("promptcal", 1e-4),
        ("promptcal", 1e4),
        *((m, None) for m in ("promptcal", "simgcd", "orca", "uno", "rankstats")),
    ],
)
def test_steps_on_poor_images(poor_images, pretrained_network, method, temperature, dtype):
    own = ["affinity.memory=32", "affinity.k=3"] if method == "promptcal" else []
    overrides = [*SMALL, *own, *([] if temperature is None else [f"loss.{t}_temperature={temperature}" for t in TERMS])]
    config = load_config(overrides=overrides, values={"n_classes": 4, "method": method})
    network = pretrained_network(config)
    network.vit.set_compute_dtype(dtype)
    store, _, _ = decode(ImageSet.of(poor_images), 9)
    view = View(store, *network.vit.preprocessing)
    chosen = METHODS[method](config)
    for name in chosen.epochs():
        stage = chosen.stage(name, network, StageContext(2, None, False, False, None, None, None))
        for labels in (torch.full((24,), -1), torch.arange(24) // 8 - 1):  # none labelled; black ones unlabelled
            for step in range(2):  # the second with something in memory
                generator = torch.Generator().manual_seed(step)
                drawn = torch.randint(24, (8,), generator=generator).repeat(2)
                result = stage.step(Batch(view.random(drawn, generator), labels[drawn], drawn, generator), 1.0)
                network.zero_grad(set_to_none=True)
                result.loss.backward()
                stage.after_update()
                assert result.loss.isfinite()
                gradients = [p.grad for p in network.trained_parameters().values() if p.grad is not None]
                assert gradients
                assert all(gradient.isfinite().all() for gradient in gradients)
