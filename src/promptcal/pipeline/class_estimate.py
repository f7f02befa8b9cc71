"""The number of classes, estimated from embeddings: `estimate-classes` and `fit --n-classes auto`."""

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from promptcal.config import Config
from promptcal.data import ImageSet, read_labels
from promptcal.discovery.class_count import ClassCount, count_classes, expected_steps
from promptcal.discovery.known_share import ImageCounts
from promptcal.errors import ConfigError
from promptcal.methods import METHODS
from promptcal.models import PromptedViT
from promptcal.pipeline.inputs import backbone_config
from promptcal.pipeline.problem import Problem
from promptcal.pipeline.request import EstimateRequest
from promptcal.run.inference import Run
from promptcal.runtime.device import choose_device, choose_dtype
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed_images


def count_classes_of(request: EstimateRequest) -> ClassCount:
    """Count in the embeddings by the network of a finished run, or by the pretrained backbone."""
    run = request.run if request.run is None or isinstance(request.run, Run) else Run(request.run, request.device)
    if run is not None:
        run.check_embeds_images()
    chosen = {"max_classes": request.max_classes, "search": request.search}
    changes = (f"estimation.{key}={value}" for key, value in chosen.items() if value is not None)
    of_run = {} if run is None or request.config is not None else {"config": run.config}
    config = backbone_config(request, overrides=(*request.overrides, *changes), **of_run)
    images = ImageSet.of(request.images)
    console = Console(stderr=True, quiet=not request.progress)
    problem = Problem.of(images, read_labels(request.labels, images, console))
    vit, resize = pretrained_vit(config) if run is None else (run.network.vit, run.info.resize)
    kept, features = embed_images(vit, images, resize, skip_unreadable=request.skip_unreadable, console=console)
    labels = problem.labels[kept]
    return count_from_features(features, labels, ImageCounts.of(labels), config, console)


def pretrained_vit(config: Config) -> tuple[PromptedViT, int]:
    """The pretrained backbone without prompts, and the shorter side that images are resized to for it."""
    device = choose_device(config.device)
    vit = frozen_vit(METHODS[config.method](config).build_vit(pretrained=True), config, device).eval()
    return vit, stored_side(config, vit)


def count_from_features(
    features: Tensor, labels: np.ndarray, images: ImageCounts, config: Config, console: Console
) -> ClassCount:
    """The number of classes as ``estimation.search`` says; of many images, the calibrated search uses a part.

    ``images`` are the numbers of all images, of which the features may be a part.
    """
    search = config.estimation.search
    with progress_bar(console) as bar:
        steps = expected_steps(labels, search)
        task = bar.add_task("counting classes", total=steps, note="")
        count = count_classes(
            features,
            labels,
            max_classes=config.estimation.max_classes,
            n_init=config.estimation.n_init,
            max_iter=config.clustering.max_iter,
            tol=config.clustering.tol,
            seed=derive_seed(config.seed, "class count"),
            search=search,
            images=images,
            on_step=lambda note: bar.update(task, advance=1, note=note),
        )
        bar.update(task, total=steps, completed=steps)
    return count


def frozen_vit(vit: PromptedViT, config: Config, device: torch.device) -> PromptedViT:
    """The same backbone without prompts; ``train_blocks`` as in ``vit``, whose parameters it shares."""
    plain = PromptedViT(vit.backbone, prompts=0, train_blocks=config.model.train_blocks)
    plain.set_compute_dtype(choose_dtype(config.precision, device))
    return plain.to(device)


def stored_side(config: Config, vit: PromptedViT) -> int:
    """The shorter side that images are stored with: as set, or the published 256 : 224 of the crop."""
    crop = vit.preprocessing.image_size
    size = config.data.resize or crop * 256 // 224
    if size < crop:
        raise ConfigError(f"data.resize ({size}) is smaller than the crop ({crop}); raise it")
    return size
