"""What only a GPU can show: same results as on the CPU, nothing in a step that waits. Skipped where there is none."""

import gc

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from promptcal.api import fit
from promptcal.data import BalancedSampler, ImageStore, View, embedded_set
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.methods import load_config
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.graph.affinity_graph import (
    GraphSettings,
    affinity_graph,
    dense_affinity_graph,
    sampled_affinity_graph,
    select_backend,
)
from promptcal.methods.promptcal.graph.kernels import quantile_above_mean
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models import ProjectionNetwork, PromptedViT
from promptcal.runtime.device import device_context
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.embedding import embed
from promptcal.training.loop import Loop, Position, TrainingData
from promptcal.training.recorder import AsyncScalars, Recorder
from promptcal.training.stage import Batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def full_float32():
    with device_context(CUDA, torch.float32):
        yield


def nodes(n, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 24, generator=generator)
    spread = torch.randn(n, 24, generator=generator)
    return F.normalize(centres[torch.randint(classes, (n,), generator=generator)] + 0.6 * spread, dim=1)


@pytest.mark.parametrize(("n", "classes", "k"), [(600, 8, 6), (600, 2, 100), (40, 2, 39), (4, 1, 3)])
@pytest.mark.parametrize("diagonal", [True, False])
def test_the_graph_is_the_dense_one(n, classes, k, diagonal):
    embeddings = nodes(n, classes)
    settings = GraphSettings(k, 0.7, include_diagonal=diagonal)
    assert select_backend(n, settings, CUDA) == "split_fp16"
    expected = dense_affinity_graph(embeddings, n // 4, settings)
    on_gpu = embeddings.to(CUDA)
    found = affinity_graph(on_gpu[: n // 4], on_gpu[n // 4 :], settings)
    torch.testing.assert_close(found.threshold.cpu(), expected.threshold, rtol=1e-4, atol=1e-7)
    assert (found.positives.cpu() == expected.positives).float().mean() > 0.999


def test_rows_sampled_on_a_gpu_are_those_sampled_on_a_cpu():
    embeddings = nodes(5000, 30)
    expected = sampled_affinity_graph(embeddings, 64, GraphSettings(7, 0.8))
    found = sampled_affinity_graph(embeddings.to(CUDA), 64, GraphSettings(7, 0.8))
    torch.testing.assert_close(found.threshold.cpu(), expected.threshold, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("n", [1, 300, 16_385, 3_000_000])
def test_quantiles_by_kernels_are_those_by_sorting(n):
    values = torch.rand(n, generator=torch.Generator().manual_seed(n)) ** 4
    for quantile in (0.0, 0.5, 0.83, 1.0):
        found = quantile_above_mean(values.to(CUDA), quantile)
        assert float(found) == pytest.approx(float(quantile_above_mean(values, quantile)), rel=1e-5)


def test_k_means_is_as_good_as_on_a_cpu():
    points = nodes(800, 12)
    y = np.where(np.arange(800) % 5 == 0, np.arange(800) % 3, -1)
    cpu, gpu = (SemiSupervisedKMeans(12, n_init=20, random_state=0).fit(points.to(d), y) for d in ("cpu", CUDA))
    assert gpu.inertia_ == pytest.approx(cpu.inertia_, rel=0.02)
    assert np.array_equal(gpu.labels_[y >= 0], y[y >= 0])


def test_crops_from_host_memory_are_those_from_the_gpu():
    store = ImageStore.of([image.repeat(2, axis=0).repeat(2, axis=1) for image in embedded_set("train").images[:64]])
    sizes = (32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    views = (View(store.to(CUDA), *sizes), View(store, *sizes, device=CUDA, reuse=True))
    for seed in range(5):  # more batches than there are pinned rooms
        chosen = torch.randint(64, (16,), generator=torch.Generator().manual_seed(seed))
        crops = [view.random(chosen, torch.Generator().manual_seed(seed)) for view in views]
        torch.testing.assert_close(crops[0], crops[1])


@pytest.mark.parametrize("resize", [None, 48])  # stored as they are seen, or enlarged as they are cropped
def test_cropped_views_are_those_of_a_cpu_and_wait_for_nothing(resize):
    images = list(embedded_set("train").images[:64])
    unchanged = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)
    size = 24 if resize is None else 40
    host, device = (View(ImageStore.of(images).to(where), size, *unchanged, resize=resize) for where in ("cpu", CUDA))
    index, draws = torch.arange(64), host.draws(64, torch.Generator().manual_seed(0))
    on_device = index.to(CUDA), draws.to(CUDA)
    device.cropped(*on_device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = device.cropped(*on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    difference = (found.cpu() - host.cropped(index, draws)).abs()
    assert difference.max() <= 2  # rounded twice where they are enlarged
    assert (difference == 0).float().mean() > 0.99


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["warmup", "affinity"])
def test_nothing_in_a_step_waits_for_the_device(name, precision):
    torch.manual_seed(0)
    vit = PromptedViT("vit_tiny_patch4_32.promptcal")
    network = ProjectionNetwork(vit, hidden=64, bottleneck=32, prototypes=256).to(CUDA)
    vit.set_compute_dtype(precision)
    config = load_config(values={"n_classes": 10}, overrides=["affinity.memory=256", "affinity.k=5"])
    data = embedded_set("train")
    view = View(ImageStore.of(list(data.images)).to(CUDA), *vit.preprocessing)
    labels = torch.from_numpy(np.where(data.labels < 5, data.labels, -1)).to(CUDA)
    stage = WarmupStage("warmup", network, config.loss)
    if name == "affinity":
        stage = AffinityStage(network, config, torch.from_numpy(data.labels).to(CUDA))
    optimiser = torch.optim.SGD(network.trained_parameters().values(), lr=0.01, momentum=0.9, fused=True)

    def step(seed):
        chosen = torch.randint(len(labels), (32,), generator=torch.Generator().manual_seed(seed))
        twice = chosen.repeat(2).to(CUDA, non_blocking=True)
        views = view.random(chosen.repeat(2), torch.Generator().manual_seed(seed))
        batch = Batch(views, labels[twice], twice, torch.Generator(CUDA).manual_seed(seed))
        result = stage.step(batch, 10.0)
        optimiser.zero_grad(set_to_none=True)
        result.loss.backward()
        optimiser.step()
        stage.after_update()
        position.add({name: value.detach() for name, value in {"loss": result.loss, **result.logs}.items()})
        return AsyncScalars(position.means())  # some logs are pairs (sum, count), which only their mean makes scalars

    position = Position()
    for seed in range(6):
        step(seed)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        scalars = [step(seed) for seed in range(6, 26)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(np.isfinite(list(each.values().values())).all() for each in scalars)


STEPS_PER_EPOCH, STEPS = 10, 40


def stage_of(name, network, config, truth):
    if name == "warmup":
        return WarmupStage("warmup", network, config.loss)
    return AffinityStage(network, config, truth, n_known=5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["warmup", "affinity"])
def test_recorded_steps_equal_those_that_are_computed(tmp_path, name, compiled):
    """The memory fills and the weight of CAL rises in the first steps, and the learning rate changes at each epoch."""
    config = load_config(
        values={"n_classes": 10},
        overrides=["affinity.memory=256", "affinity.k=5", "affinity.negatives=64", "optim.lr=0.02"],
    )
    data = embedded_set("train")
    truth = torch.from_numpy(data.labels).to(CUDA)
    labels = torch.from_numpy(np.where(data.labels < 5, data.labels, -1))
    store = ImageStore.of(list(data.images)).to(CUDA)

    def trained(recorded):
        torch.manual_seed(0)
        vit = PromptedViT("vit_tiny_patch4_32.promptcal", train_blocks=2)
        network = ProjectionNetwork(vit, hidden=64, bottleneck=32, prototypes=256).to(CUDA)
        if compiled:
            network.compile()
        view = View(store, *vit.preprocessing)
        batches = TrainingData(view, labels.to(CUDA), BalancedSampler(labels >= 0, 32))
        loop = Loop(
            stage_of(name, network, config, truth),
            batches,
            epochs=STEPS // STEPS_PER_EPOCH,
            optim=config.optim,
            seed=0,
            checkpoints=Checkpoints(tmp_path),
            recorder=Recorder(tmp_path, Console(quiet=True), tensorboard=False),
        )
        network.train()
        if not recorded:
            loop.update = loop.compute
        generator = torch.Generator().manual_seed(0)
        order = torch.randint(len(labels), (STEPS, 32), generator=generator)
        losses, embeddings = [], []
        for step, batch in enumerate(batches.batches(order, range(STEPS))):
            loop.position.epoch = step // STEPS_PER_EPOCH
            loop.set_learning_rate()
            loop.position.sums, loop.position.counts = {}, {}
            loop.step(batch, step / STEPS_PER_EPOCH)
            losses.append(loop.position.means()["loss"])
            if step % 10 == 9:
                embeddings.append(embed(network, view, torch.arange(100), batch_size=64))
        logs = AsyncScalars(loop.position.means()).values()
        return torch.stack(losses), torch.stack(embeddings), logs, loop

    expected_losses, expected, expected_logs, _ = trained(False)
    losses, found, logs, loop = trained(True)
    assert loop.update.is_recorded
    assert (losses[0] - losses[-1]).abs() > 0.01  # it has learned something
    torch.testing.assert_close(losses, expected_losses, rtol=2e-4, atol=0.0)
    assert logs == pytest.approx(expected_logs, rel=2e-2)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-3)
    assert not torch.equal(found[0], found[-1])


@pytest.mark.parametrize("name", ["warmup", "affinity"])
def test_steps_and_embeddings_of_the_compiled_network_equal_those_of_the_plain_one(name):
    config = load_config(values={"n_classes": 10}, overrides=["affinity.memory=256", "affinity.k=5"])
    data = embedded_set("train")
    labels = torch.from_numpy(np.where(data.labels < 5, data.labels, -1)).to(CUDA)
    store = ImageStore.of(list(data.images)).to(CUDA)

    def trained(compiled):
        torch.manual_seed(0)
        vit = PromptedViT("vit_tiny_patch4_32.promptcal")
        network = ProjectionNetwork(vit, hidden=64, bottleneck=32, prototypes=256).to(CUDA)
        if compiled:
            network.compile()
        view = View(store, *vit.preprocessing)
        stage = WarmupStage("warmup", network, config.loss) if name == "warmup" else AffinityStage(network, config)
        optimiser = torch.optim.SGD(network.trained_parameters().values(), lr=0.01, momentum=0.9, fused=True)
        losses, embeddings = [], []
        for seed in range(12):
            chosen = torch.randint(len(labels), (32,), generator=torch.Generator().manual_seed(seed)).repeat(2)
            views = view.random(chosen, torch.Generator().manual_seed(seed))
            batch = Batch(views, labels[chosen.to(CUDA)], chosen.to(CUDA), torch.Generator(CUDA).manual_seed(seed))
            result = stage.step(batch, 10.0)
            optimiser.zero_grad(set_to_none=True)
            result.loss.backward()
            optimiser.step()
            stage.after_update()
            losses.append(result.loss.detach())
            if seed % 4 == 3:
                embeddings.append(embed(network, view, torch.arange(100), batch_size=64))
        return torch.stack(losses), torch.stack(embeddings)

    (expected_losses, expected), (losses, found) = trained(False), trained(True)
    assert (losses[0] - losses[-1]).abs() > 0.01  # it has learned something
    torch.testing.assert_close(losses, expected_losses, rtol=5e-3, atol=0.0)
    assert (found * expected).sum(dim=-1).min() > 0.999
    assert not torch.equal(found[0], found[-1])


def test_the_watch_over_loss_and_gradient_waits_for_nothing(tmp_path):
    torch.manual_seed(0)
    vit = PromptedViT("vit_tiny_patch4_32.promptcal")
    network = ProjectionNetwork(vit, hidden=64, bottleneck=32, prototypes=256).to(CUDA)
    config = load_config(values={"n_classes": 10})
    data = embedded_set("train")
    view = View(ImageStore.of(list(data.images)).to(CUDA), *vit.preprocessing)
    labels = torch.from_numpy(np.where(data.labels < 5, data.labels, -1))
    batches = TrainingData(view, labels.to(CUDA), BalancedSampler(labels >= 0, 32))
    loop = Loop(
        WarmupStage("warmup", network, config.loss),
        batches,
        epochs=1,
        optim=config.optim,
        seed=0,
        checkpoints=Checkpoints(tmp_path),
        recorder=Recorder(tmp_path, Console(quiet=True), tensorboard=False),
    )
    drawn = list(batches.batches(torch.arange(26 * 32).view(26, 32), range(26)))
    for batch in drawn[:6]:
        loop.step(batch, 0.0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in drawn[6:]:
            loop.step(batch, 0.0)
        reading = AsyncScalars(loop.position.means())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reading.values()["gradient_norm"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_runs_repeat_themselves(tmp_path, small_set, quick_settings, outcome, precision):
    """As a process of its own would need no setting, CUBLAS_WORKSPACE_CONFIG must be there from the start here."""
    images, _, labels = small_set
    for name in ("a", "b"):
        fit(
            images=images,
            labels=labels,
            n_classes=4,
            output=tmp_path / name,
            overrides=quick_settings,
            device="cuda",
            precision=precision,
            deterministic=True,
            progress=False,
            report=False,
        )
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


def test_the_memory_of_the_gpu_is_released_after_each_fit(tmp_path, small_set, quick_settings):
    images, _, labels = small_set
    used = []
    for i in range(4):
        given = {"images": images, "labels": labels, "n_classes": 4, "overrides": quick_settings, "device": "cuda"}
        fit(**given, output=tmp_path / f"{i}", progress=False, report=False)
        gc.collect()
        used.append(torch.cuda.memory_allocated(CUDA))
    assert used[1:] == used[:1] * 3
