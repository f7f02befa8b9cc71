"""Attention maps of a few images: of the pretrained backbone, then after each stage."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from promptcal.data import ImageSet
from promptcal.data.loading import view_of
from promptcal.data.store import decode
from promptcal.data.views import Normalise
from promptcal.errors import PromptCALError
from promptcal.models import PromptedViT
from promptcal.models.attention import class_attention, has_class_attention
from promptcal.report.array_files import read_if_newer, write_arrays
from promptcal.run import Run, RunResults
from promptcal.runtime.arrays import read_arrays
from promptcal.runtime.json_model import damaged
from promptcal.training.checkpoints import Checkpoints

PRETRAINED = "pretrained"


@dataclass(frozen=True)
class Examples:
    """A few images as the network sees them (n x size x size x 3, uint8), and their positions in the run."""

    images: np.ndarray
    pixels: np.ndarray

    @classmethod
    def from_views(cls, views: Tensor, images: np.ndarray, normalise: Normalise) -> "Examples":
        """Undo the normalisation of ``views`` to get the pixels."""
        pixels = (views.cpu() - normalise.shift.cpu()) / normalise.scale.cpu()
        return cls(images, pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy())

    def write(self, path: Path) -> None:
        write_arrays(path, images=self.images, pixels=self.pixels)

    @classmethod
    def read(cls, path: Path) -> "Examples | None":
        """The examples in a file; None if there are none, because every image has a label."""
        if not path.is_file():
            return None
        try:
            images, pixels = read_arrays(path, "images", "pixels")
        except ValueError as error:
            raise damaged(path, error) from error
        are_images = images.ndim == 1 and images.dtype.kind in "iu" and pixels.dtype == np.uint8 and pixels.ndim == 4
        if not are_images or pixels.shape[::3] != (len(images), 3):
            raise damaged(path, "it holds no images")
        return cls(images, pixels)


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of each example to each patch at each step of the method; each map sums to 1."""

    examples: Examples | None
    steps: list[str]
    maps: np.ndarray  # examples x steps x rows x columns
    missing: str = ""  # why there are no maps, or why a step is left out

    @classmethod
    def none(cls, reason: str) -> "AttentionMaps":
        return cls(None, [], np.empty((0, 0, 0, 0)), reason)

    @classmethod
    def read(cls, path: Path, examples: Examples, weights_file: Path) -> "AttentionMaps | None":
        """The stored maps of these examples; None if they are damaged or older than the weights."""
        stored = read_if_newer(path, weights_file, "steps", "maps")
        if stored is None:
            return None
        steps, maps = stored
        are_maps = steps.ndim == 1 and steps.dtype.kind == "U" and maps.ndim == 4 and maps.dtype.kind == "f"
        if not are_maps or maps.shape[:2] != (len(examples.images), len(steps)) or not np.isfinite(maps).all():
            return None
        return cls(examples, steps.tolist(), maps)


def examples_of(run: Run, images: ImageSet, chosen: np.ndarray) -> Examples:
    """Some of the images as the network of the run sees them."""
    part, resize = images.subset(chosen.tolist()), run.info.resize
    store, _, _ = decode(part, resize)
    view = view_of(store, *run.network.vit.preprocessing, resize=resize, device=run.device)
    views = next(iter(view.centres(torch.arange(len(chosen)), len(chosen))))
    return Examples.from_views(views, chosen, view.normalise)


def attention_maps(run: Run, results: RunResults, examples: Examples | None) -> AttentionMaps:
    """Maps of the pretrained backbone, of the previous run if there is one, and of each stage's selected weights."""
    if not run.method.takes_images:
        return AttentionMaps.none("There are no attention maps: this run is on features, without a network.")
    if examples is None:
        return AttentionMaps.none("There are no attention maps: this run has no unlabelled images.")
    network = run.network
    if not has_class_attention(network.vit):
        return AttentionMaps.none("This backbone's attention cannot be read: its last block is not a standard one.")
    preprocessing = network.vit.preprocessing
    if examples.pixels.shape[1:3] != (preprocessing.image_size,) * 2:
        raise damaged(run.directory.examples_file, "its images do not have the size of the network's")
    normalise = Normalise(preprocessing.mean, preprocessing.std, run.device)
    views = normalise(torch.from_numpy(examples.pixels).permute(0, 3, 1, 2).to(run.device))
    maps: dict[str, np.ndarray] = {}
    missing = ""

    def add(step: str, vit: PromptedViT) -> None:
        maps[step] = (
            class_attention(vit, views).mean(dim=1).reshape(-1, *vit.backbone.patch_embed.grid_size).cpu().numpy()
        )

    try:
        add(PRETRAINED, _pretrained_backbone(run))
    except PromptCALError as error:
        missing = f"The maps of the pretrained backbone are missing: its weights cannot be loaded ({error})."
    try:
        if (previous := _previous_run(run)) is not None:
            add("previous run", previous.network.vit)
    except PromptCALError as error:
        missing = f"The maps of the previous run are missing: it cannot be read ({error})."
    trained = _stage_titles(run, results)
    checkpoints = Checkpoints(run.directory.checkpoints_folder)
    for stage, title in trained[:-1]:
        if checkpoints.best(stage).is_file():
            checkpoints.load_best(stage, network)
            add(title, network.vit)
        else:
            missing = f"The maps {title} are missing: its checkpoint was deleted."
    if trained:
        if len(trained) > 1:  # restore the final weights
            network.load_state_dict(run.stored_weights())
        add(trained[-1][1], network.vit)
    if not maps:
        return AttentionMaps.none(missing)
    return AttentionMaps(examples, list(maps), np.stack(list(maps.values()), axis=1), missing)


def _pretrained_backbone(run: Run) -> PromptedViT:
    """The pretrained backbone without prompts, which are random before training."""
    return PromptedViT(run.method.build_vit(pretrained=True).backbone, prompts=0, train_blocks=0).to(run.device)


def _previous_run(run: Run) -> Run | None:
    """The run whose weights this run started from; None if there is none or if it trained nothing."""
    if run.info.started_from is None:
        return None
    previous = Run(run.info.started_from, str(run.device))
    return previous if previous.method.trains else None


def _stage_titles(run: Run, results: RunResults) -> list[tuple[str, str]]:
    """The stages that this run trained, in order, each with a short title."""
    names = list(run.method.epochs())
    titles = [f"after stage {i}" for i in range(1, len(names) + 1)] if len(names) > 1 else [f"after {run.method.title}"]
    return [(name, title) for name, title in zip(names, titles, strict=False) if name in results.stages]


def overlays(maps: AttentionMaps, side: int = 160) -> np.ndarray:
    """The image, then each step's map over it, for each example: uint8 n x (1 + steps) x side x side x 3."""
    assert maps.examples is not None
    colours = (colormaps["inferno"](np.linspace(0, 1, 256))[:, :3] * 255).astype(np.float32)
    rows = []
    for pixels, maps_of_steps in zip(maps.examples.pixels, maps.maps, strict=True):
        image = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC))
        cells = [image]
        for attention in maps_of_steps:
            heat = Image.fromarray((attention / max(float(attention.max()), 1e-12)).astype(np.float32))
            strength = np.asarray(heat.resize((side, side), Image.Resampling.BILINEAR)).clip(0, 1)
            coloured = colours[(strength * 255).astype(np.uint8)]
            cells.append((0.35 * image + 0.65 * coloured).clip(0, 255).astype(np.uint8))
        rows.append(cells)
    return np.array(rows, dtype=np.uint8)


def overlay_sheet(maps: AttentionMaps) -> bytes | None:
    """All overlays in one WebP image, a row for each example."""
    if maps.examples is None or not maps.steps:
        return None
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in overlays(maps)], axis=0)
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, format="WEBP", quality=82)
    return buffer.getvalue()
