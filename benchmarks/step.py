"""Time and memory of a training step, everything included: views from the store, both heads, both tokens, losses,
affinity graph, optimiser, moving average, memory.

    python benchmarks/step.py                      on a GPU: ViT-B/16, 224 px, 128 images x 2 views, memory 4096
    python benchmarks/step.py --device cpu         the demo's step against the equations written as loops
    python benchmarks/step.py --backbone vit_small_patch14_dinov2 --image-size 112
                                                   a small network, for which CUDA graphs matter
    python benchmarks/step.py --grow               how an affinity step grows with memory, K and batch

On CUDA it also runs 20 steps of each stage with every host synchronisation forbidden, and steps and validations in turn
with every further compilation forbidden.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from literal import literal_affinity_term
from measuring import H200_TFLOPS, machine, median_ms, peak_gb, reset_peak, show, slope
from rich.console import Console

from promptcal.data import BalancedSampler, ImageStore, View
from promptcal.methods import load_config
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.settings import PromptCALConfig
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models import ProjectionNetwork, PromptedViT
from promptcal.runtime.device import choose_device, choose_dtype, device_context
from promptcal.training.captured_step import plain_update
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.embedding import embed
from promptcal.training.loop import Loop, TrainingData
from promptcal.training.recorder import AsyncScalars, Recorder

PUBLISHED_BACKBONE = "vit_base_patch16_224.dino"
PUBLISHED_MS = {"warmup": 519.0, "affinity": 1851.0}  # the published code on an H200, compute only


def network_of(config: PromptCALConfig, device: torch.device, compiled: bool) -> ProjectionNetwork:
    torch.manual_seed(0)
    model = config.model
    vit = PromptedViT(
        model.backbone,
        model.prompts,
        model.supervised_prompts,
        train_blocks=model.train_blocks,
        image_size=model.image_size,
        pretrained=False,
    )
    network = ProjectionNetwork(
        vit, hidden=model.head_hidden, bottleneck=model.head_bottleneck, prototypes=model.head_prototypes
    )
    network.to(device).vit.set_compute_dtype(choose_dtype(config.precision, device))
    if compiled:
        network.compile()
    return network


def data_of(network: ProjectionNetwork, batch_size: int, device: torch.device, images: int = 2048) -> TrainingData:
    """Random images a little larger than the crop, a third of them labelled."""
    sizes = network.vit.preprocessing
    side = sizes.image_size * 256 // 224
    noise = np.random.default_rng(0)
    store = ImageStore.of([noise.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(images)])
    labels = torch.from_numpy(np.where(np.arange(images) % 3 == 0, np.arange(images) % 50, -1))
    view = View(store.placed(device), *sizes, device=device, reuse=True)
    return TrainingData(view, labels.to(device), BalancedSampler(labels >= 0, batch_size))


def stepper(stage: Any, data: TrainingData, config: PromptCALConfig, captured: bool = True) -> Callable[[], None]:
    """One step of the training loop per call, as in a fit past its first epochs."""
    folder = Path(tempfile.mkdtemp())
    loop = Loop(
        stage,
        data,
        epochs=1,
        optim=config.optim,
        seed=0,
        checkpoints=Checkpoints(folder),
        recorder=Recorder(folder, Console(quiet=True), tensorboard=False),
    )
    stage.network.train()
    loop.set_learning_rate()
    if not captured:
        loop.update = plain_update

    def batches() -> Iterator[Any]:
        epoch = 0
        while True:
            order = data.sampler.epoch(epoch)
            yield from data.batches(order, [1000 * epoch + i for i in range(len(order))])
            epoch += 1

    endless = batches()

    def step() -> None:
        loop.step(next(endless), 10.0)
        AsyncScalars(loop.position.means()).is_ready()  # as the progress bar does, more rarely

    return step


def vit_tflop(vit: PromptedViT, views: int) -> float:
    """Of one forward pass: 24 d^2 + 4 T d operations a token and block."""
    tokens = vit.backbone.patch_embed.num_patches + vit.backbone.num_prefix_tokens + vit.n_prompts
    per_token = 24 * vit.dim**2 + 4 * tokens * vit.dim
    return views * tokens * per_token * len(vit.backbone.blocks) / 1e12


def step_tflop(vit: PromptedViT, config: PromptCALConfig) -> dict[str, float]:
    """Of a step by stage: forward, backward to the prompts of every block, weights of the trained blocks; the teacher
    adds a forward pass."""
    forward = vit_tflop(vit, 2 * config.data.batch_size)
    warmup = 2.13 + (config.model.train_blocks - 1) / len(vit.backbone.blocks)
    return {"warmup": warmup * forward, "affinity": (warmup + 1) * forward}


def fill_memory(step: Callable[[], None], config: PromptCALConfig) -> None:
    for _ in range(config.affinity.memory // (2 * config.data.batch_size) + 2):
        step()


def measure(
    config: PromptCALConfig,
    device: torch.device,
    compiled: bool,
    repeats: int,
    stages: tuple[str, ...] = ("warmup", "affinity"),
    captured: bool = True,
) -> dict[str, tuple[float, float, Any]]:
    """Time, peak memory, and the stage with its step, by stage."""
    found = {}
    for name in stages:
        reset_peak(device)
        network = network_of(config, device, compiled)
        data = data_of(network, config.data.batch_size, device)
        truth = torch.arange(len(data.labels), device=device) % 100  # the graph's precision and recall are logged too
        stage = (
            WarmupStage("warmup", network, config.loss) if name == "warmup" else AffinityStage(network, config, truth)
        )
        step = stepper(stage, data, config, captured)
        begun = time.perf_counter()
        step()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"{name}: first two steps {time.perf_counter() - begun:.1f} s", file=sys.stderr)
        if name == "affinity":
            fill_memory(step, config)
        elapsed = median_ms(step, device, repeats=repeats)
        found[name] = (elapsed, peak_gb(device), (stage, step, data.view))
    return found


def forbid_waiting(name: str, step: Callable[[], None]) -> None:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(20):
        step()
    torch.cuda.set_sync_debug_mode("default")
    print(f"{name}: 20 steps without a host synchronisation")


def forbid_compiling(name: str, network: ProjectionNetwork, step: Callable[[], None], view: View) -> None:
    """Steps and validations in turn, as between epochs, after each has been compiled."""
    for images in (600, 900):
        embed(network, view, torch.arange(images))
        step()
        torch._dynamo.config.error_on_recompile = True
    torch._dynamo.config.error_on_recompile = False
    print(f"{name}: nothing compiled again between epochs")


def against_floor(config: PromptCALConfig, device: torch.device, compiled: bool, repeats: int) -> None:
    launched = measure(config, device, compiled, repeats, captured=False)
    found = measure(config, device, compiled, repeats)
    for name, (_, _, (stage, step, view)) in found.items():
        forbid_waiting(name, step)
        if compiled:
            forbid_compiling(name, stage.network, step, view)
    tflop = step_tflop(found["warmup"][2][0].network.vit, config)
    header = ["step", "floor ms", "measured ms", "x floor", "peak GB"]
    rows: list[list[Any]] = []
    for name, (elapsed, peak, _) in found.items():
        floor = 1000 * tflop[name] / H200_TFLOPS
        rows.append([name, floor, elapsed, elapsed / floor, peak])
    others = {"kernels launched one by one": {name: ms for name, (ms, _, _) in launched.items()}}
    if config.model.backbone == PUBLISHED_BACKBONE and config.model.image_size is None:
        others["published code"] = PUBLISHED_MS
    for other, by_stage in others.items():
        header += [f"{other} ms", "times faster"]
        for row, name in zip(rows, found, strict=True):
            row += [by_stage[name], by_stage[name] / found[name][0]]
    show(f"Training step, {config.model.backbone}, {machine(device)}", header, rows)


def against_loops(config: PromptCALConfig, device: torch.device, repeats: int) -> None:
    """The demo's affinity step, and the same step with its affinity terms computed with loops as in the equations."""
    found = measure(config, device, False, repeats)
    elapsed, _, (stage, step, _) = found["affinity"]
    stage._mine_pairs = lambda teacher, memory, batch: batch
    stage._affinity_term = lambda *given: literal_affinity_term(stage, *given)
    literal = median_ms(step, device, repeats=1, warm_up=0)
    show(
        f"The demo's affinity step, {machine(device)}",
        ("with loops ms", "measured ms", "times faster"),
        [(literal, elapsed, literal / elapsed)],
    )


def grow(base: PromptCALConfig, device: torch.device, compiled: bool, repeats: int) -> None:
    """Time and peak memory of an affinity step by size."""
    sweeps: dict[str, list[int]] = {
        "affinity.memory": [1024, 2048, 4096, 7936],
        "affinity.k": [5, 10, 20],
        "data.batch_size": [32, 64, 128],
    }
    rows = []
    for key, sizes in sweeps.items():
        times, peaks = [], []
        for size in sizes:
            section, name = key.split(".")
            part = getattr(base, section).model_copy(update={name: size})
            found = measure(base.model_copy(update={section: part}), device, compiled, repeats, ("affinity",))
            times.append(found["affinity"][0])
            peaks.append(found["affinity"][1])
        rows.append((key, sizes, [round(t, 1) for t in times], slope(sizes, times), [round(p, 1) for p in peaks]))
    show(f"Affinity step by size, {machine(device)}", ("size", "values", "ms", "log-log slope", "peak GB"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--backbone", help="default: the paper's on a GPU, the included one on a CPU")
    parser.add_argument("--image-size", type=int, help="default: the backbone's own")
    parser.add_argument("--train-blocks", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--grow", action="store_true")
    given = parser.parse_args()
    device = choose_device(given.device)
    on_gpu = device.type == "cuda"
    backbone = given.backbone or (PUBLISHED_BACKBONE if on_gpu else None)
    overrides = [f"model.backbone={backbone}"] if backbone else []
    overrides += [f"model.image_size={given.image_size}"] if given.image_size else []
    overrides += ["affinity.k=5", f"model.train_blocks={given.train_blocks}"] if on_gpu else []
    config = load_config(
        preset=None if on_gpu else "quick",
        values={"n_classes": 200 if on_gpu else 10, "precision": given.precision},
        overrides=overrides,
    )
    assert isinstance(config, PromptCALConfig)
    compiled = on_gpu and not given.no_compile
    with device_context(device, choose_dtype(config.precision, device)):
        if given.grow:
            grow(config, device, compiled, max(5, given.repeats // 5))
        elif on_gpu:
            against_floor(config, device, compiled, given.repeats)
        else:
            against_loops(config, device, min(given.repeats, 10))


if __name__ == "__main__":
    main()
