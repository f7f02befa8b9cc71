"""A run directory: what a fit leaves behind, and what predict and evaluate go by."""

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from promptcal import files
from promptcal._version import __version__
from promptcal.config import Config, validate
from promptcal.data import ImageSet, View
from promptcal.data.store import decode
from promptcal.device import choose_device, choose_dtype, computing_on
from promptcal.errors import ConfigError, RunError, WeightsError
from promptcal.methods import method_of
from promptcal.models import ClassifierNetwork, PromptedViT, TrainedNetwork, load_weights
from promptcal.partition import centre_shares, classifier_shares, nearest_centres
from promptcal.training.embedding import embed
from promptcal.training.recorder import progress_bar
from promptcal.training.seeds import derive_seed

FORMAT = 1
_IMAGES_AT_ONCE = 2048  # decoded together when new images are embedded


@dataclass(frozen=True)
class Assignments:
    """Which category each image was put into, with the softmax share of that category as confidence."""

    paths: list[str]
    clusters: np.ndarray
    confidence: np.ndarray
    names: list[str]
    n_known: int
    labelled: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def categories(self) -> list[str]:
        """The category's name of each image."""
        return [self.names[c] for c in self.clusters]

    def to_csv(self) -> str:
        rows = zip(
            self.paths,
            self.clusters.tolist(),
            self.categories,
            ["known" if c < self.n_known else "new" for c in self.clusters],
            [f"{c:.4f}" for c in self.confidence],
            ["yes" if labelled else "no" for labelled in self.labelled],
            strict=True,
        )
        return files.csv_text(["path", "cluster", "name", "kind", "confidence", "labelled"], rows)


class RunDirectory:
    """Names of the files in a run directory, and its state."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.info_file = self.path / "run.json"
        self.config_file = self.path / "config.yaml"
        self.model_file = self.path / "model.safetensors"
        self.centres_file = self.path / "centres.safetensors"
        self.assignments_file = self.path / "assignments.csv"
        self.embeddings_file = self.path / "embeddings.npy"
        self.results_file = self.path / "results.json"
        self.evaluation_file = self.path / "evaluation.json"
        self.skipped_file = self.path / "skipped.csv"
        self.checkpoints_folder = self.path / "checkpoints"
        self.sheets_folder = self.path / "sheets"
        self.thumbnails_folder = self.path / "thumbnails"
        self.examples_file = self.path / "thumbnails" / "examples.npz"
        self.truth_file = self.path / "truth.csv"
        self.metrics_file = self.path / "metrics.jsonl"
        self.map_file = self.path / "map.npz"
        self.attention_file = self.path / "attention.npz"
        self.report_file = self.path / "report.html"
        self.figures_folder = self.path / "figures"

    def exists(self) -> bool:
        return self.info_file.is_file()

    def info(self) -> dict[str, Any]:
        if not self.exists():
            raise RunError(f"{self.path} is not a run directory (it has no run.json); give the --output of a fit")
        try:
            info = json.loads(self.info_file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise RunError(f"{self.info_file} is damaged ({error}); fit again with --overwrite") from error
        if info.get("format") != FORMAT:
            raise RunError(
                f"{self.path} has run format {info.get('format')}, and this promptcal {__version__} reads {FORMAT}; "
                "use the version that made it"
            )
        return info

    def write_info(self, info: dict[str, Any]) -> None:
        files.write_json(self.info_file, {"format": FORMAT, "promptcal": __version__, **info})

    def config(self) -> Config:
        try:
            return validate(yaml.safe_load(self.config_file.read_text(encoding="utf-8")))
        except (OSError, yaml.YAMLError, TypeError, ValueError) as error:
            raise RunError(f"{self.config_file} cannot be read ({error}); fit again with --overwrite") from error

    def write_truth(self, names: Sequence[str], truth: Sequence[str | None]) -> None:
        told = [(name, label) for name, label in zip(names, truth, strict=True) if label is not None]
        files.write_csv(self.truth_file, ["path", "label"], told)

    def check_free(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse an output that would destroy something, before anything is computed."""
        if resume and overwrite:
            raise RunError("--resume goes on with a run and --overwrite discards it; give only one of them")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"the output {self.path} is a file; give a folder")
        if resume:
            if self.info()["status"] == "finished":
                raise RunError(f"the run in {self.path} is finished; there is nothing to resume")
        elif self.exists():
            finished = self.info()["status"] == "finished"
            remedy = "" if finished else " add --resume to go on with it,"
            state = "a finished" if finished else "an unfinished"
            if not overwrite:
                raise RunError(
                    f"{self.path} holds {state} run;{remedy} add --overwrite to discard it, or choose another --output"
                )
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(f"the folder {self.path} is not empty and not a run; choose another --output")

    def clear(self) -> None:
        """Remove an earlier run to make room for a new one."""
        if self.exists():
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True, exist_ok=True)


def build_network(config: Config, n_known: int, *, pretrained: bool) -> TrainedNetwork:
    """The network a config describes, for so many known classes; its random parts depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "network"))
        return method_of(config).network(build_vit(config, pretrained=pretrained), n_known)


def build_vit(config: Config, *, pretrained: bool) -> PromptedViT:
    """The prompted backbone a config describes."""
    model = config.model
    vit = PromptedViT(
        model.backbone,
        model.prompts,
        model.supervised_prompts,
        train_blocks=model.train_blocks,
        image_size=model.image_size,
        pretrained=pretrained and model.pretrained and model.weights is None,
        prompt_pooling=config.switches.prompt_pooling,
    )
    if pretrained and model.weights is not None:
        load_weights(vit, model.weights)
    return vit


def stored_side(config: Config, vit: PromptedViT) -> int:
    """The shorter side images are stored with: as set, or the published 256 : 224 of the crop."""
    crop = vit.preprocessing.image_size
    size = config.data.resize or crop * 256 // 224
    if size < crop:
        raise ConfigError(f"data.resize ({size}) is smaller than the crop ({crop}); raise it")
    return size


def embed_in_parts(
    vit: PromptedViT, images: ImageSet, resize: int, *, skip_unreadable: bool, console: Console
) -> tuple[list[int], Tensor]:
    """Positions of the images that could be read and their L2-normalised embeddings, few held decoded at a time."""
    device = next(vit.parameters()).device
    positions: list[int] = []
    features = []
    with progress_bar(console) as bar:
        task = bar.add_task("reading and embedding", total=len(images), note="")
        for first in range(0, len(images), _IMAGES_AT_ONCE):
            part = images.subset(range(first, min(first + _IMAGES_AT_ONCE, len(images))))
            store, kept, _ = decode(part, resize, skip_unreadable=skip_unreadable)
            view = View(store.placed(device), *vit.preprocessing, resize=resize, device=device, reuse=True)
            positions += [first + i for i in kept]
            with computing_on(device, vit.compute_dtype):
                features.append(embed(vit, view, torch.arange(len(store))))
            bar.advance(task, len(part))
    return positions, torch.cat(features)


def category_names(classes: Sequence[str], n_clusters: int) -> list[str]:
    """Known classes by name, then new-1, new-2, ... (never a name that a known class has)."""
    fresh = (name for i in range(1, 2 * n_clusters + 1) if (name := f"new-{i}") not in classes)
    return [*classes, *(next(fresh) for _ in range(n_clusters - len(classes)))]


class Run:
    """A finished run, ready to embed and assign images."""

    def __init__(self, path: str | PathLike[str], device: str | None = None) -> None:
        self.directory = RunDirectory(path)
        self.info = self.directory.info()
        if self.info["status"] != "finished":
            raise RunError(f"the run in {path} is not finished; run its fit again with --resume")
        self.config = self.directory.config()
        self.device = choose_device(device or self.config.device)
        self.names: list[str] = self.info["categories"]
        self.n_known: int = len(self.info["known_classes"])

    @cached_property
    def centres(self) -> Tensor:
        return self._read(self.directory.centres_file)["centres"].to(self.device)

    @cached_property
    def columns(self) -> Tensor:
        """Of a classifier: which of its outputs stands for which cluster."""
        return self._read(self.directory.centres_file)["columns"].to(self.device)

    @cached_property
    def network(self) -> TrainedNetwork:
        network = build_network(self.config, self.n_known, pretrained=False)
        try:
            network.load_state_dict(self.stored_weights())
        except RuntimeError as error:
            raise WeightsError(f"{self.directory.model_file} does not fit its config; fit again") from error
        network.vit.compute_in(choose_dtype(self.config.precision, self.device))
        return network.to(self.device).eval()

    @property
    def path(self) -> Path:
        return self.directory.path

    def stored_weights(self) -> dict[str, Tensor]:
        return self._read(self.directory.model_file)

    def truth(self) -> list[str | None] | None:
        """The true class of each image in the order of the assignments, where it was given."""
        if not self.directory.truth_file.is_file():
            return None
        with self.directory.truth_file.open(newline="", encoding="utf-8") as file:
            told = {row["path"]: row["label"] for row in csv.DictReader(file)}
        return [told.get(path) for path in self.assignments().paths]

    def embed(self, images: Any, *, skip_unreadable: bool = False, progress: bool = True) -> tuple[list[str], Tensor]:
        """Names and L2-normalised embeddings of new images."""
        image_set = ImageSet.of(images)
        console = Console(stderr=True, quiet=not progress)
        kept, features = embed_in_parts(
            self.network.vit, image_set, self.info["resize"], skip_unreadable=skip_unreadable, console=console
        )
        return [image_set.names[i] for i in kept], features

    def predict(self, images: Any, *, skip_unreadable: bool = False, progress: bool = True) -> Assignments:
        """The category of each new image."""
        paths, features = self.embed(images, skip_unreadable=skip_unreadable, progress=progress)
        if isinstance(self.network, ClassifierNetwork):
            shares = classifier_shares(features, self.network, self.columns)
            clusters = shares.argmax(dim=1)
        else:
            shares = centre_shares(features, self.centres, self.config.loss.affinity_temperature)
            clusters = nearest_centres(features, self.centres)
        confidence = shares.gather(1, clusters.unsqueeze(1)).squeeze(1)
        labelled = np.zeros(len(paths), dtype=bool)
        return Assignments(paths, clusters.cpu().numpy(), confidence.cpu().numpy(), self.names, self.n_known, labelled)

    def assignments(self) -> Assignments:
        """What the fit assigned to its own images."""
        try:
            with self.directory.assignments_file.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise RunError(f"{self.directory.assignments_file} cannot be read ({error}); fit again") from error
        return Assignments(
            [row["path"] for row in rows],
            np.array([int(row["cluster"]) for row in rows]),
            np.array([float(row["confidence"]) for row in rows]),
            self.names,
            self.n_known,
            np.array([row["labelled"] == "yes" for row in rows]),
        )

    def given_images(self) -> tuple[ImageSet, list[int]]:
        """The names of all images the fit was given, and the positions among them of those it assigned."""
        names = list(self.assignments().paths)
        skipped: list[int] = []
        if self.directory.skipped_file.exists():
            with self.directory.skipped_file.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):  # by rising position, so that each finds its place
                    skipped.append(int(row["position"]))
                    names.insert(skipped[-1], row["path"])
        root = self.info.get("root")
        assigned = [i for i in range(len(names)) if i not in set(skipped)]
        return ImageSet(names, _no_image, None if root is None else Path(root)), assigned

    @staticmethod
    def _read(path: Path) -> dict[str, Tensor]:
        try:
            return load_file(path)
        except Exception as error:  # safetensors and OS errors share no base class
            raise RunError(f"{path} cannot be read ({error}); fit again with --overwrite") from error


def _no_image(index: int) -> Any:
    raise NotImplementedError("a run keeps the names of its images, not the images")
