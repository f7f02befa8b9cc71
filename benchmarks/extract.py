"""Images per second from the store to embeddings, and the time of a validation between epochs.

    python benchmarks/extract.py            ViT-B/16 at 224 px with prompts, compiled, bf16 on a GPU
    python benchmarks/extract.py --grow     time of extraction and validation by number of images

A validation computes embeddings of 10,000 images, k-means with 10 starts into 100 clusters, accuracy (with the truth,
so that clusters are matched) and silhouette. Random images have no clusters, so k-means takes long.
"""

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import H200_TFLOPS, machine, once_s, peak_gb, reset_peak, show, slope
from step import network_of, vit_tflop

from promptcal.config import Config
from promptcal.data import ImageStore, View
from promptcal.methods import METHODS, load_config
from promptcal.models import ProjectionNetwork
from promptcal.pipeline.clustering import validation_kmeans
from promptcal.runtime.device import choose_device, choose_dtype, device_context
from promptcal.training.embedding import embed
from promptcal.training.validation import ValidationResult, Validator

CLASSES, KNOWN = 100, 80


def view_of(network: ProjectionNetwork, images: int, device: torch.device) -> View:
    sizes = network.vit.preprocessing
    side = sizes.image_size * 256 // 224
    pixels = torch.randint(0, 256, (images * 3 * side * side,), dtype=torch.uint8, device=device)
    store = ImageStore.from_buffer(pixels, [(side, side)] * images)
    return View(store.to(device), *sizes, device=device, reuse=True)


def validator_of(view: View, images: int, config: Config) -> Validator:
    truth = np.arange(images) % CLASSES
    labelled = (truth < KNOWN) & (np.arange(images) % 2 == 0)
    held_out = labelled & (np.arange(images) % 20 == 0)
    labels = np.where(labelled & ~held_out, truth, -1)
    return Validator(view, labels, np.where(held_out, truth, -1), config, truth)


def validate(validator: Validator, network: ProjectionNetwork, config: Config) -> ValidationResult:
    method = METHODS[config.method](config)
    assignment, kmeans = method.assignment(network), validation_kmeans(config)
    return validator.validate(
        network,
        lambda features, labels: assignment.clusters(features, labels, kmeans),
        lambda known, silhouette: method.validation_score("affinity", known, silhouette),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--backbone", default="vit_base_patch16_224.dino")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--grow", action="store_true")
    given = parser.parse_args()
    device = choose_device(given.device)
    config: Any = load_config(
        values={"n_classes": CLASSES, "precision": given.precision},
        overrides=[f"model.backbone={given.backbone}", f"selection.max_images={4 * given.images}"],
    )
    with device_context(device, choose_dtype(config.precision, device)):
        network = network_of(config, device, device.type == "cuda" and not given.no_compile)
        sizes = [given.images // 4, given.images, 4 * given.images] if given.grow else [given.images]
        rows: list[tuple[Any, ...]] = []
        for images in sizes:
            view = view_of(network, images, device)
            everything = torch.arange(images)
            embed(network, view, everything[:512])
            reset_peak(device)
            extraction = min(once_s(partial(embed, network, view, everything), device) for _ in range(3))
            validator = validator_of(view, images, config)
            validate(validator, network, config)
            validation = once_s(partial(validate, validator, network, config), device)
            floor = vit_tflop(network.vit, images) / H200_TFLOPS
            rate = images / extraction
            rows.append((images, floor, extraction, extraction / floor, f"{rate:,.0f}", validation, peak_gb(device)))
        header = ["images", "floor s", "extraction s", "x floor", "images/s", "validation s", "peak GB"]
        show(f"Extraction and validation, {given.backbone}, {machine(device)}", header, rows)
        if given.grow:
            for name, column in (("extraction", 2), ("validation", 5)):
                print(f"log-log slope of {name}: {slope(sizes, [row[column] for row in rows]):.2f}")


if __name__ == "__main__":
    main()
