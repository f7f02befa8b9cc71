"""bf16, and compiled bf16, against the float32 eager path, which is the reference.

Stated agreement of one step: loss within 1 %, cosine between the gradients of all trained parameters above 0.999.
Measured here: loss within 6e-4, cosine 0.9999 or better, in both stages, compiled or not.
"""

import copy

import numpy as np
import pytest
import torch

from promptcal import fit
from promptcal.data import ImageStore, View, embedded_set
from promptcal.methods import load_config
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models import ProjectionNetwork, PromptedViT
from promptcal.models.head import DINOHead
from promptcal.training.embedding import embed
from promptcal.training.recorder import AsyncScalars
from promptcal.training.stage import Batch


def included_network(depth):
    """The last blocks of the included backbone: real features, compiled in seconds."""
    torch.manual_seed(0)
    vit = PromptedViT("vit_tiny_patch4_32.promptcal")
    vit.backbone.blocks = vit.backbone.blocks[-depth:]
    vit.prompts = torch.nn.Parameter(vit.prompts.detach()[-depth:].clone())
    return ProjectionNetwork(vit, hidden=64, bottleneck=32, prototypes=256)


def a_batch(seed):
    data = embedded_set("train")
    chosen = np.random.default_rng(seed).choice(len(data.images), 16, replace=False)
    views = torch.from_numpy(data.images[chosen]).permute(0, 3, 1, 2).float().div(128).sub(1)
    labels = torch.from_numpy(np.where(data.labels[chosen] < 5, data.labels[chosen], -1)).long()
    twice = torch.cat([views, views.flip(3)])
    return Batch(twice, labels.repeat(2), torch.from_numpy(chosen).repeat(2), torch.Generator().manual_seed(seed))


def stage_of(name, network, config):
    if name == "warmup":
        return WarmupStage("warmup", network, config.loss)
    stage = AffinityStage(network, config)
    for seed in range(1, 5):  # fill the memory
        with torch.no_grad():
            stage.step(a_batch(seed), 10.0)
        stage.after_update()
    return stage


@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        pytest.param("warmup", False, id="warmup-eager"),
        pytest.param("affinity", False, id="affinity-eager"),
        pytest.param("warmup", True, id="warmup-compiled"),
        pytest.param("affinity", True, id="affinity-compiled", marks=pytest.mark.slow),
    ],
)
def test_a_bf16_step_agrees_with_the_float32_step(name, compiled):
    config = load_config(values={"n_classes": 10}, overrides=["affinity.memory=96", "affinity.k=5", "loss.beta=0.6"])
    reference = stage_of(name, included_network(depth=1 if compiled else 3), config)
    other = copy.deepcopy(reference)
    other.network.vit.set_compute_dtype(torch.bfloat16)
    if compiled:
        other.network.vit.compile(dynamic=False)
    losses, gradients = [], []
    for stage in (reference, other):
        result = stage.step(a_batch(0), 10.0)
        result.loss.backward()
        losses.append(float(result.loss.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in stage.network.trained_parameters().values()]))
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert float(torch.cosine_similarity(*gradients, dim=0)) > 0.999
    assert float(gradients[1].norm() / gradients[0].norm()) == pytest.approx(1.0, abs=0.02)


def test_a_compiled_network_embeds_a_last_batch_that_is_not_full(tmp_path):
    """Padded and cut again, so that no batch of another size is compiled: counted by the compiler's backend."""
    network = included_network(depth=1)
    batches = set()

    def backend(graph, inputs):
        batches.update(len(i) for i in inputs if isinstance(i, torch.Tensor) and i.ndim == 3)
        return graph.forward

    data = embedded_set("train")
    store = ImageStore.of(list(data.images[:70]))
    view = View(store, *network.vit.preprocessing)
    expected = embed(network, view, torch.arange(70), batch_size=32)
    network.vit.compile(dynamic=False, backend=backend)
    found = embed(network, view, torch.arange(70), batch_size=32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert batches == {32}


@pytest.mark.slow
def test_each_fit_compiles_its_own_network(tmp_path, monkeypatch, small_set, quick_settings):
    """What an earlier fit compiled is dropped: it would count towards the number after which the compiler gives up."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    compile_blocks = PromptedViT.compile
    monkeypatch.setattr(PromptedViT, "compile", lambda vit: compile_blocks(vit, backend=backend))
    monkeypatch.setattr(DINOHead, "compile", lambda head, **options: None)
    images, _, labels = small_set
    settings = [*quick_settings, "method=promptcal-warmup", "warmup.epochs=1", "compile=always"]
    counts = []
    for name in ("first", "second"):
        fit(
            images=images,
            labels=[None if c < 0 else str(c) for c in labels],
            n_classes=4,
            output=tmp_path / name,
            overrides=settings,
            progress=False,
            report=False,
        )
        counts.append(len(compiled))
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0]


def test_async_scalars_are_the_numbers_in_order():
    numbers = {"loss": torch.tensor(1.5), "positives": torch.tensor(3), "threshold": torch.tensor(0.25)}
    scalars = AsyncScalars(numbers)
    assert scalars.is_ready()
    assert scalars.values() == {"loss": 1.5, "positives": 3.0, "threshold": 0.25}
    assert AsyncScalars({}).values() == {}


@pytest.mark.slow  # bf16 is emulated on most CPUs
def test_training_curves_in_bf16_equal_those_in_float32_within_the_noise_of_seeds(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    curves = {}
    for precision in ("fp32", "bf16"):
        runs = [
            fit(
                images=images,
                labels=[None if c < 0 else str(c) for c in labels],
                n_classes=4,
                output=tmp_path / f"{precision}-{seed}",
                overrides=[*quick_settings, "model.image_size=8", "selection.by=last", "tensorboard=no"],
                precision=precision,
                seed=seed,
                progress=False,
                report=False,
            )
            for seed in range(3)
        ]
        curves[precision] = np.array([[record["loss"] for record in run.records()] for run in runs])
    noise = curves["fp32"].std(axis=0, ddof=1)
    difference = np.abs(curves["bf16"] - curves["fp32"]).mean(axis=0)
    assert curves["fp32"].shape == (3, 4)
    assert (difference > 0).all()  # or bf16 was not used at all
    assert (difference < noise).all(), (difference, noise)
    assert (difference < 0.01 * curves["fp32"].mean(axis=0)).all()
