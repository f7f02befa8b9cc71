"""Time of whole fits by phase, and of their training steps against the arithmetic floor.

    python benchmarks/fit.py --demo                        the demo, on a CPU
    python benchmarks/fit.py                               on a GPU: CUB-size and CIFAR-size images, ViT-S/14 at 112 px
                                                           and ViT-B/16 at 224 px, 40 + 20 epochs
    python benchmarks/fit.py --images cub --network vit-b --epochs 200 100
                                                           one of them, with the published number of epochs

Images and weights are random, so nothing is downloaded and the categories mean nothing. The steps of each stage are
compared with the time that the arithmetic of the ViT takes: at 790 TFLOP/s on a GPU (an H200), on a CPU at the speed
of its matrix products, which is measured first.
"""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from measuring import H200_TFLOPS, machine, median_ms, peak_gb, reset_peak, show
from safetensors.torch import save_file
from step import step_tflop

from promptcal.api import demo, fit
from promptcal.methods import METHODS
from promptcal.methods.promptcal.settings import PromptCALConfig
from promptcal.models.backbones import create_backbone
from promptcal.run import Run
from promptcal.runtime.device import choose_device
from promptcal.runtime.phases import COMPILING, steps_of


class Images(NamedTuple):
    """Random images of the size of a data set: known classes are the first ones, half of their images are labelled."""

    n_images: int
    n_classes: int
    n_known: int
    side: int  # pixels of the stored files


class Network(NamedTuple):
    backbone: str
    image_size: int


IMAGES = {"cub": Images(5994, 200, 100, 256), "cars": Images(8137, 196, 98, 256), "cifar": Images(50_000, 100, 80, 32)}
NETWORKS = {"vit-s": Network("vit_small_patch14_dinov2", 112), "vit-b": Network("vit_base_patch16_224.dino", 224)}


def random_images(size: Images, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (a coarse pattern of each class, another of each image, and noise) and labels, -1 where unlabelled."""
    random = np.random.default_rng(seed)
    cells = -(-size.side // 8)
    of_class = random.integers(0, 160, (size.n_classes, cells, cells, 3), dtype=np.uint8)
    classes = np.arange(size.n_images) % size.n_classes
    images = np.empty((size.n_images, size.side, size.side, 3), dtype=np.uint8)
    for image, number in zip(images, classes, strict=True):
        coarse = of_class[number] + random.integers(0, 64, (cells, cells, 3), dtype=np.uint8)
        large = coarse.repeat(8, axis=0).repeat(8, axis=1)[: size.side, : size.side]
        image[:] = large + random.integers(0, 32, large.shape, dtype=np.uint8)
    is_labelled = (classes < size.n_known) & (np.arange(size.n_images) // size.n_classes % 2 == 0)
    return images, np.where(is_labelled, classes, -1)


def random_weights(network: Network, file: Path) -> Path:
    """A weight file for the backbone."""
    torch.manual_seed(0)
    save_file(create_backbone(network.backbone, image_size=network.image_size, pretrained=False).state_dict(), file)
    return file


def fit_random(
    size: Images, network: Network, epochs: tuple[int, int], folder: Path, device: str, overrides: tuple[str, ...] = ()
) -> Run:
    """A fit as `promptcal fit` does it, with everything but the download of weights and the files of images."""
    images, labels = random_images(size)
    return fit(
        images=images,
        labels=labels,
        n_classes=size.n_classes,
        backbone=network.backbone,
        weights=random_weights(network, folder / "weights.safetensors"),
        device=device,
        allow_long=True,
        output=folder / "run",
        overrides=(
            f"model.image_size={network.image_size}",
            f"warmup.epochs={epochs[0]}",
            f"affinity.epochs={epochs[1]}",
            *overrides,
        ),
    )


def tflops(device: torch.device, size: int = 2048) -> float:
    """The speed of matrix products: as stated for an H200, or measured in float32 on a CPU."""
    if device.type == "cuda":
        return H200_TFLOPS
    a = torch.ones(size, size)
    return 2 * size**3 / (median_ms(lambda: a @ a, device, repeats=5, warm_up=1) * 1e9)


def phase_rows(run: Run, speed: float) -> list[tuple[object, ...]]:
    """Phase, seconds, share of the run, and for the steps of a stage: their number, time of one, floor and ratio."""
    results, config = run.directory.results(), run.config
    assert results is not None
    assert results.seconds is not None
    assert isinstance(config, PromptCALConfig)
    steps = trained_steps(run)
    vit = METHODS[config.method](config).build_vit(pretrained=False)
    floors = {stage: tflop / speed for stage, tflop in step_tflop(vit, config).items()}
    rows: list[tuple[object, ...]] = []
    for phase, seconds in results.phases.items():
        rows.append((phase, seconds, f"{seconds / results.seconds:.0%}", "", "", "", ""))
        for stage, n_steps in steps.items():
            if phase == steps_of(stage):
                once = seconds / n_steps
                rows[-1] = (*rows[-1][:3], n_steps, 1000 * once, 1000 * floors[stage], once / floors[stage])
    floor_of_run = sum(floors[stage] * n for stage, n in steps.items())
    rows.append(("all", results.seconds, "100%", sum(steps.values()), "", "", results.seconds / floor_of_run))
    return rows


def trained_steps(run: Run) -> dict[str, int]:
    """Steps of each stage that count as steps; of a compiled network, the first one of each stage does not."""
    results, info, config = run.directory.results(), run.info, run.config
    assert results is not None
    per_epoch = max(1, info.n_images // config.data.batch_size)
    compiled = 1 if COMPILING in results.phases else 0
    return {name: stage.epochs * per_epoch - compiled for name, stage in results.stages.items()}


def report(title: str, run: Run, device: torch.device, peak: float) -> None:
    header = ("phase", "s", "share", "steps", "ms a step", "floor ms", "x floor")
    show(f"{title}, {machine(device)}, peak {peak:.1f} GB", header, phase_rows(run, tflops(device)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="the demo instead of random images")
    parser.add_argument("--images", choices=[*IMAGES], nargs="+", default=[*IMAGES])
    parser.add_argument("--network", choices=[*NETWORKS], nargs="+", default=[*NETWORKS])
    parser.add_argument("--epochs", type=int, nargs=2, default=(40, 20), help="of warm-up and affinity learning")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = choose_device("cpu" if given.demo else given.device)
    with tempfile.TemporaryDirectory() as folder:
        if given.demo:
            report(
                "The demo", demo(output=Path(folder) / "run", device="cpu", allow_long=True), device, peak_gb(device)
            )
            return
        for images in given.images:
            for network in given.network:
                place = Path(folder) / f"{images}-{network}"
                place.mkdir()
                reset_peak(device)
                run = fit_random(IMAGES[images], NETWORKS[network], tuple(given.epochs), place, given.device)
                backbone = NETWORKS[network].backbone
                report(f"{images}-size, {backbone}, {given.epochs} epochs", run, device, peak_gb(device))


if __name__ == "__main__":
    main()
