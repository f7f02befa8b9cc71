"""Images a second from the store to embeddings, and the time of a look between epochs.

    python benchmarks/extract.py            ViT-B/16 at 224 px with prompts, compiled, bf16 on a GPU
    python benchmarks/extract.py --grow     how extraction and a look grow with the number of images

A look is what selection does between epochs: embeddings of 10,000 images, k-means with 10 starts into 100
clusters, accuracy (with the truth, so that clusters are matched) and silhouette. Random images have no clusters; its
k-means therefore takes long.
"""

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import H200_TFLOPS, machine, once_s, peak_gb, reset_peak, show, slope
from step import network_of, vit_tflop

from promptcal.config.schema import Config, load_config
from promptcal.data import ImageStore, View
from promptcal.models import ProjectionNetwork
from promptcal.runtime.device import choose_device, choose_dtype, device_context
from promptcal.training.embedding import embed
from promptcal.training.validation import Selector

CLASSES, KNOWN = 100, 80


def view_of(network: ProjectionNetwork, images: int, device: torch.device) -> View:
    sizes = network.vit.preprocessing
    side = sizes.image_size * 256 // 224
    pixels = torch.randint(0, 256, (images * 3 * side * side,), dtype=torch.uint8, device=device)
    store = ImageStore.from_buffer(pixels, [(side, side)] * images)
    return View(store.to(device), *sizes, device=device, reuse=True)


def look_of(network: ProjectionNetwork, view: View, images: int, config: Config) -> Selector:
    truth = np.arange(images) % CLASSES
    labelled = (truth < KNOWN) & (np.arange(images) % 2 == 0)
    kept_back = labelled & (np.arange(images) % 20 == 0)
    labels = np.where(labelled & ~kept_back, truth, -1)
    return Selector(view, labels, np.where(kept_back, truth, -1), config, truth)


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
    config = load_config(
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
            selector = look_of(network, view, images, config)
            selector.look(network, "affinity")
            look = once_s(partial(selector.look, network, "affinity"), device)
            floor = vit_tflop(network, images) / H200_TFLOPS
            rate = images / extraction
            rows.append((images, floor, extraction, extraction / floor, f"{rate:,.0f}", look, peak_gb(device)))
        header = ["images", "floor s", "extraction s", "x floor", "images/s", "look s", "peak GB"]
        show(f"Extraction and looks, {given.backbone}, {machine(device)}", header, rows)
        if given.grow:
            for name, column in (("extraction", 2), ("look", 5)):
                print(f"log-log slope of {name}: {slope(sizes, [row[column] for row in rows]):.2f}")


if __name__ == "__main__":
    main()
