"""Attention maps of a few images: by the backbone as loaded, then after each stage."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from promptcal.data.views import Normalise
from promptcal.errors import PromptCALError, RunError
from promptcal.models import PromptedViT
from promptcal.models.attention import class_attention, has_class_attention, patch_grid
from promptcal.runtime import files
from promptcal.runtime.arrays import read_arrays
from promptcal.training.checkpoints import Checkpoints

if TYPE_CHECKING:
    from promptcal.run.inference import Assignments, Run

EXAMPLES = 12


@dataclass(frozen=True)
class Examples:
    """A few images as the network sees them (n x size x size x 3, uint8), and their places in the run."""

    images: np.ndarray
    pixels: np.ndarray

    @classmethod
    def seen(cls, views: Tensor, images: np.ndarray, normalise: Normalise) -> "Examples":
        """From normalised views, of which the pixels are recovered."""
        pixels = (views.cpu() - normalise.shift.cpu()) / normalise.scale.cpu()
        return cls(images, pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy())

    def write(self, path: Path) -> None:
        def save(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, images=self.images, pixels=self.pixels)

        files.write_with(path, save)

    @classmethod
    def read(cls, path: Path) -> "Examples | None":
        if not path.is_file():
            return None
        try:
            images, pixels = read_arrays(path, "images", "pixels")
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}); delete it") from error
        if images.ndim != 1 or images.dtype.kind not in "iu" or pixels.dtype != np.uint8 or pixels.ndim != 4:
            raise RunError(f"{path} is damaged (it holds no images); delete it")
        if pixels.shape[::3] != (len(images), 3):
            raise RunError(f"{path} is damaged (it holds no images); delete it")
        return cls(images, pixels)


@dataclass(frozen=True)
class AttentionMaps:
    """For each example and each step of the method the attention by patch (rows x columns, sums to 1).

    ``missing`` says why there are none, or why a step is left out.
    """

    examples: Examples | None
    steps: list[str]
    maps: np.ndarray  # examples x steps x rows x columns
    missing: str = ""

    @classmethod
    def none(cls, why: str) -> "AttentionMaps":
        return cls(None, [], np.empty((0, 0, 0, 0)), why)

    def write(self, path: Path) -> None:
        def save(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(file, steps=np.array(self.steps), maps=self.maps)

        files.write_with(path, save)

    @classmethod
    def read(cls, path: Path, examples: Examples, made_after: Path) -> "AttentionMaps | None":
        """The stored maps of these examples, unless the weights are younger."""
        if not path.is_file() or path.stat().st_mtime < made_after.stat().st_mtime:
            return None
        try:
            steps, maps = read_arrays(path, "steps", "maps")
        except ValueError:  # damaged: made anew
            return None
        fits = steps.ndim == 1 and steps.dtype.kind == "U" and maps.ndim == 4 and maps.dtype.kind == "f"
        if not fits or maps.shape[:2] != (len(examples.images), len(steps)) or not np.isfinite(maps).all():
            return None
        return cls(examples, steps.tolist(), maps)


def choose_examples(assignments: "Assignments", n: int = EXAMPLES) -> np.ndarray:
    """Unlabelled images that are typical of their category, over as many categories as may be."""
    queues = []
    for cluster in range(len(assignments.names)):
        members = np.flatnonzero((assignments.clusters == cluster) & ~assignments.labelled)
        queues.append(list(members[np.argsort(-assignments.confidence[members], kind="stable")]))
    queues = [queue for queue in queues if queue]
    if len(queues) > n:
        queues = [queues[i] for i in np.linspace(0, len(queues) - 1, n).round().astype(int)]
    chosen: list[int] = []
    while len(chosen) < n and any(queues):
        chosen += [queue.pop(0) for queue in queues if queue]
    return np.array(sorted(chosen[:n], key=lambda i: (assignments.clusters[i], i)), dtype=np.int64)


def attention_maps(run: "Run", examples: Examples | None) -> AttentionMaps:
    """By the backbone as loaded, by the run this one goes on from, if any, and by the kept weights of each stage."""
    if examples is None or not len(examples.images):
        return AttentionMaps.none("This run was made before examples were kept for attention maps; fit again.")
    network = run.network
    if not has_class_attention(network.vit):
        return AttentionMaps.none("The last block of this backbone is not of the plain kind, so it cannot be asked.")
    sizes = network.vit.preprocessing
    normalise = Normalise(sizes.mean, sizes.std, run.device)
    views = normalise(torch.from_numpy(examples.pixels).permute(0, 3, 1, 2).to(run.device))
    steps: list[str] = []
    maps: list[np.ndarray] = []
    missing = ""

    def add(step: str, vit: PromptedViT) -> None:
        rows, columns = patch_grid(vit)
        attention = class_attention(vit, views).mean(dim=1)
        steps.append(step)
        maps.append(attention.reshape(-1, rows, columns).cpu().numpy())

    try:
        add("as loaded", _backbone_as_loaded(run))
    except PromptCALError as error:
        missing = f"The backbone's own weights cannot be loaded here ({error}), so its maps are left out."
    try:
        before = _run_before(run)
        if before is not None:
            add("in the run before", before.network.vit)
    except PromptCALError as error:
        missing = f"The run before cannot be asked any more ({error}), so its maps are left out."
    trained = _trained_stages(run)
    checkpoints = Checkpoints(run.directory.checkpoints_folder)
    for stage, title in trained[:-1]:
        if checkpoints.best(stage).is_file():
            checkpoints.load_best(stage, network)
            add(title, network.vit)
        else:
            missing = f"The checkpoint of {title} is gone, so its maps are left out."
    if trained:
        if len(trained) > 1:  # back from the stages before to the end
            network.load_state_dict(run.stored_weights())
        add(trained[-1][1], network.vit)
    return AttentionMaps(examples, steps, np.stack(maps, axis=1), missing) if maps else AttentionMaps.none(missing)


def _backbone_as_loaded(run: "Run") -> PromptedViT:
    from promptcal.run.inference import build_network

    vit = build_network(run.config, run.n_known, pretrained=True).vit
    return PromptedViT(vit.backbone, prompts=0, train_blocks=0).to(run.device)


def _run_before(run: "Run") -> "Run | None":
    """The run whose weights this one started from; one that only clustered has none to give."""
    from promptcal.run.inference import Run

    if "started_from" not in run.info:
        return None
    before = Run(run.info["started_from"], str(run.device))
    return None if before.config.method == "kmeans" else before


def _trained_stages(run: "Run") -> list[tuple[str, str]]:
    """Stages that this run trained, in order, with a short title each."""
    from promptcal.methods import method_of

    method = method_of(run.config)
    stages = [name for name, epochs in method.epochs().items() if epochs]
    titles = {name: f"after stage {number}" for number, name in enumerate(stages, start=1)}
    if len(stages) == 1 and not method.stage_titles:
        titles = {stages[0]: f"after {method.title}"}
    went_on = "started_from" in run.info and run.directory.results_file.is_file()
    done = json.loads(run.directory.results_file.read_text(encoding="utf-8")) if went_on else titles
    return [(name, title) for name, title in titles.items() if name in done]


def example_record(maps: AttentionMaps) -> dict[str, Any]:
    """What the page says of the maps, without the pictures."""
    images = [] if maps.examples is None else maps.examples.images.tolist()
    return {"steps": maps.steps, "images": images if maps.steps else [], "missing": maps.missing}


def overlays(maps: AttentionMaps, side: int = 160) -> np.ndarray:
    """The image, then each step's map over it, for each example: uint8 n x (1 + steps) x side x side x 3."""
    assert maps.examples is not None
    colours = (colormaps["inferno"](np.linspace(0, 1, 256))[:, :3] * 255).astype(np.float32)
    rows = []
    for pixels, of_steps in zip(maps.examples.pixels, maps.maps, strict=True):
        image = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC))
        cells = [image]
        for attention in of_steps:
            heat = Image.fromarray((attention / max(float(attention.max()), 1e-12)).astype(np.float32))
            strength = np.asarray(heat.resize((side, side), Image.Resampling.BILINEAR)).clip(0, 1)
            glow = colours[(strength * 255).astype(np.uint8)]
            cells.append((0.35 * image + 0.65 * glow).clip(0, 255).astype(np.uint8))
        rows.append(cells)
    return np.array(rows, dtype=np.uint8)


def overlay_sheet(maps: AttentionMaps) -> bytes | None:
    """All overlays in one WebP, a row for each example."""
    if maps.examples is None or not maps.steps:
        return None
    cells = overlays(maps)
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in cells], axis=0)
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, format="WEBP", quality=82)
    return buffer.getvalue()
