"""A run directory: what a fit leaves behind, and what predict and evaluate go by."""

import csv
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from promptcal._version import __version__
from promptcal.config.schema import Config, validate
from promptcal.data import ImageSet
from promptcal.data.decoding import is_image
from promptcal.data.loading import view_of
from promptcal.data.store import decode, refuse_faults
from promptcal.discovery.calibration import Calibration
from promptcal.discovery.partition import centre_cosines, choices, classifier_logits, nearest_centres
from promptcal.errors import ConfigError, DataError, PromptCALError, PromptCALWarning, RunError, WeightsError
from promptcal.methods import method_of
from promptcal.models import ClassifierNetwork, DiscoveryNetwork, PromptedViT, load_weights
from promptcal.run.info import FORMAT, check_complete, read_info
from promptcal.runtime import files, locking
from promptcal.runtime.device import choose_device, choose_dtype, device_context
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.safe_yaml import read_yaml
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed

DISCARDED = "discarded"  # state of a run that is being removed
_WRITTEN_BEFORE_RUN_JSON = {
    ".lock",
    "config.yaml",
    "skipped.csv",
    "class-count.png",
    "class-count.csv",
    "class-count.json",
}
_LAST_SETTING = "tensorboard"  # that every version has written, after all others
_IMAGES_AT_ONCE = 2048  # decoded together when new images are embedded


@dataclass(frozen=True)
class Assignments:
    """Which category each image was put into, with the softmax share of that category as confidence.

    ``known`` says of each category whether it is a class with labels. ``second`` is the likeliest other category of
    each image (-1 where there is none, or where an older run did not record it). Of new images, ``similarity`` is
    the cosine with the nearest centre, and ``accepted`` whether it is near enough to be of any of the categories.
    """

    paths: list[str]
    clusters: np.ndarray
    confidence: np.ndarray
    names: list[str]
    known: list[bool]
    labelled: np.ndarray
    second: np.ndarray
    second_confidence: np.ndarray
    similarity: np.ndarray | None = None
    accepted: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def categories(self) -> list[str]:
        """The category's name of each image."""
        return [self.names[c] for c in self.clusters]

    def kind(self, cluster: int) -> str:
        """known or new."""
        return "known" if self.known[cluster] else "new"

    def table(self) -> dict[str, list[Any]]:
        """By column; None where there is no second choice."""
        has_second = self.second >= 0
        table = {
            "path": self.paths,
            "cluster": self.clusters.tolist(),
            "name": self.categories,
            "kind": [self.kind(c) for c in self.clusters],
            "confidence": self.confidence.tolist(),
            "labelled": self.labelled.tolist(),
            "second": [self.names[c] if there else None for c, there in zip(self.second, has_second, strict=True)],
            "second_confidence": [
                c if there else None for c, there in zip(self.second_confidence.tolist(), has_second, strict=True)
            ],
        }
        if self.similarity is not None and self.accepted is not None:
            table["similarity"] = self.similarity.tolist()
            table["decision"] = ["accepted" if accepted else "none" for accepted in self.accepted]
        return table

    def to_csv(self) -> str:
        table = self.table()
        return files.csv_text(list(table), zip(*(map(_cell, column) for column in table.values()), strict=True))


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else value


class RunDirectory:
    """Names of the files in a run directory, and its state."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.lock_file = self.path / ".lock"
        self.info_file = self.path / "run.json"
        self.config_file = self.path / "config.yaml"
        self.model_file = self.path / "model.safetensors"
        self.centres_file = self.path / "centres.safetensors"
        self.assignments_file = self.path / "assignments.csv"
        self.calibration_file = self.path / "calibration.json"
        self.held_out_file = self.path / "held_out.json"
        self.changes_file = self.path / "changes.csv"
        self.changes_summary_file = self.path / "changes.json"
        self.assignments_parquet_file = self.path / "assignments.parquet"
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
        return read_info(self.info_file)

    def check_links(self) -> None:
        """Refuse a run that would have others write, through its links, what lies outside of it."""
        home = self.path.resolve()
        written = (self.sheets_folder, self.thumbnails_folder, self.figures_folder, self.checkpoints_folder)
        for place in (*written, self.path / "tensorboard", self.metrics_file):
            if not place.resolve().is_relative_to(home):
                raise RunError(f"{place} is a link that leads out of the run; put what it links to in its place")

    def write_info(self, info: dict[str, Any]) -> None:
        files.write_json(self.info_file, {"format": FORMAT, "promptcal": __version__, **info})

    def config(self) -> Config:
        try:
            values = read_yaml(self.config_file.read_text(encoding="utf-8"))
            if isinstance(values, dict) and _LAST_SETTING not in values:  # all are written, so defaults are no answer
                raise ValueError("it is cut off")
            return validate(values)
        except (OSError, TypeError, ValueError) as error:
            raise RunError(f"{self.config_file} cannot be read ({error}); fit again with --overwrite") from error

    def write_truth(self, names: Sequence[str], truth: Sequence[str | None]) -> None:
        told = [(name, label) for name, label in zip(names, truth, strict=True) if label is not None]
        files.write_csv(self.truth_file, ["path", "label"], told)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that fits into this directory; what a killed one left half-written is removed."""
        was_there = self.path.is_dir()
        with ExitStack() as lock:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock.enter_context(locking.locked(self.lock_file, str(self.path)))
                files.remove_leftovers(self.path)
            except OSError as error:
                reason = error.strerror or str(error)
                raise RunError(f"the output {self.path} cannot be written to ({reason}); choose another") from error
            try:
                yield
            except (PromptCALError, OSError):
                if not was_there and [*self.path.iterdir()] == [self.lock_file]:
                    shutil.rmtree(self.path)  # nothing came of it, so leave no trace
                raise

    def is_unbegun(self) -> bool:
        """Whether a fit was killed here before its run began, or while it discarded the one before."""
        if self.exists():
            return self.info()["status"] == DISCARDED
        return self.lock_file.exists() and all(
            entry.name in _WRITTEN_BEFORE_RUN_JSON or files.is_temporary(entry) for entry in self.path.iterdir()
        )

    def check_free(self, *, resume: bool, overwrite: bool) -> bool:
        """Refuse an output that would destroy something, before anything is computed.

        Says whether there is anything to resume: a fit killed at its very beginning has nothing, and starts anew.
        """
        if resume and overwrite:
            raise RunError("--resume goes on with a run and --overwrite discards it; give only one of them")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"the output {self.path} is a file; give a folder")
        if overwrite and self.exists():
            return False
        if self.path.is_dir() and self.is_unbegun():
            return False
        if resume:
            if not self.exists():
                raise RunError(f"there is no run in {self.path} to resume; leave --resume out to start one")
            if self.info()["status"] == "finished":
                raise RunError(
                    f"the run in {self.path} is finished; there is nothing to resume "
                    f"(promptcal report {self.path} makes its report again)"
                )
            self.check_links()
            return True
        if self.exists():
            finished = self.info()["status"] == "finished"
            remedy = "" if finished else " add --resume to go on with it,"
            state = "a finished" if finished else "an unfinished"
            raise RunError(
                f"{self.path} holds {state} run;{remedy} add --overwrite to discard it, or choose another --output"
            )
        if self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(f"the folder {self.path} is not empty and not a run; choose another --output")
        return False

    def clear(self) -> None:
        """Remove an earlier run to make room for a new one; if killed in between, it is no run any more."""
        if self.exists():
            self.write_info({"status": DISCARDED})
        for entry in [*self.path.iterdir()]:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry not in (self.lock_file, self.info_file):
                entry.unlink()
        self.info_file.unlink(missing_ok=True)

    def verify_checksum(self, path: Path) -> None:
        """Refuse a result that is not what the fit wrote; runs of older versions have no checksums."""
        expected = self.info().get("sha256", {}).get(path.name)
        if expected is not None and expected != files.file_digest(path):
            raise RunError(f"{path} is not as the fit wrote it (its checksum is another); fit again, or put it back")


def build_network(config: Config, n_known: int, *, pretrained: bool) -> DiscoveryNetwork:
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
    left_out: list[tuple[str, str]] = []
    with progress_bar(console) as bar:
        task = bar.add_task("reading and embedding", total=len(images), note="")
        for first in range(0, len(images), _IMAGES_AT_ONCE):
            part = images.subset(range(first, min(first + _IMAGES_AT_ONCE, len(images))))
            store, kept, faults = decode(part, resize, skip_unreadable=skip_unreadable, part=True)
            left_out += faults
            positions += [first + i for i in kept]
            if kept:
                view = view_of(store, *vit.preprocessing, resize=resize, device=device)
                with device_context(device, vit.compute_dtype):
                    features.append(embed(vit, view, torch.arange(len(store))))
            bar.advance(task, len(part))
    refuse_faults(left_out, len(positions), skip_unreadable)
    if left_out:
        told = "; ".join(f"{name} ({reason})" for name, reason in left_out)
        message = f"{len(left_out)} unreadable images are left out: {told}"
        warnings.warn(message, PromptCALWarning, stacklevel=2)
    return positions, torch.cat(features)


def training_temperature(config: Config, network: DiscoveryNetwork) -> float:
    """At which a run's scores become shares before anything is calibrated; a classifier's outputs have their own."""
    return 1.0 if isinstance(network, ClassifierNetwork) else config.loss.affinity_temperature


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
        check_complete(self.info, self.directory.info_file)
        self.directory.check_links()
        self.config = self.directory.config()
        self.device = choose_device(device or self.config.device)
        self.names: list[str] = self.info["categories"]
        self.n_known: int = len(self.info["known_classes"])
        self.known: list[bool] = [name in set(self.info["known_classes"]) for name in self.names]

    @cached_property
    def centres(self) -> Tensor:
        width = self.network.vit.backbone.num_features
        return self._stored_centres("centres", (len(self.names), width)).to(self.device)

    @cached_property
    def columns(self) -> Tensor:
        """Of a classifier: which of its outputs stands for which cluster."""
        columns = self._stored_centres("columns", (len(self.names),))
        if not torch.equal(columns.sort().values, torch.arange(len(columns))):
            raise RunError(f"{self.directory.centres_file} is damaged (columns); fit again with --overwrite")
        return columns.to(self.device)

    def _stored_centres(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self._read(self.directory.centres_file).get(name)
        if found is None or tuple(found.shape) != shape:
            raise RunError(f"{self.directory.centres_file} does not fit its run ({name}); fit again with --overwrite")
        return found

    @cached_property
    def network(self) -> DiscoveryNetwork:
        network = build_network(self.config, self.n_known, pretrained=False)
        try:
            network.load_state_dict(self.stored_weights())
        except RuntimeError as error:
            raise WeightsError(f"{self.directory.model_file} does not fit its config; fit again") from error
        network.vit.set_compute_dtype(choose_dtype(self.config.precision, self.device))
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
            try:
                told = {_text(row["path"]): _text(row["label"]) for row in csv.DictReader(file)}
            except (KeyError, ValueError, TypeError, csv.Error) as error:
                raise self._damaged(self.directory.truth_file, error) from error
        return [told.get(path) for path in self.assignments().paths]

    def embed(self, images: Any, *, skip_unreadable: bool = False, progress: bool = True) -> tuple[list[str], Tensor]:
        """Names and L2-normalised embeddings of new images."""
        image_set = ImageSet.of(images)
        console = Console(stderr=True, quiet=not progress)
        kept, features = embed_in_parts(
            self.network.vit, image_set, self.info["resize"], skip_unreadable=skip_unreadable, console=console
        )
        return [image_set.names[i] for i in kept], features

    @cached_property
    def calibration(self) -> Calibration:
        """As measured at the end of the fit; runs of older versions have none."""
        if not self.directory.calibration_file.exists():
            return Calibration(training_temperature(self.config, self.network))
        return Calibration.read(self.directory.calibration_file)

    def predict(
        self,
        images: Any,
        *,
        none_below: float | None = None,
        accept_all: bool = False,
        skip_unreadable: bool = False,
        progress: bool = True,
    ) -> Assignments:
        """The category of each new image, and whether it is near enough to any to be accepted."""
        threshold = self._threshold(none_below, accept_all)
        paths, features = self.embed(images, skip_unreadable=skip_unreadable, progress=progress)
        scores, clusters, similarity = self.scores(features)
        chosen = choices(torch.softmax(scores / self.calibration.temperature, dim=1), clusters)
        return Assignments(
            paths,
            chosen.clusters,
            chosen.confidence,
            self.names,
            self.known,
            np.zeros(len(paths), dtype=bool),
            chosen.second,
            chosen.second_confidence,
            similarity.cpu().numpy(),
            (similarity >= threshold).cpu().numpy(),
        )

    def scores(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (images x clusters), the cluster, and the cosine with the nearest centre, of embeddings."""
        cosines = centre_cosines(features, self.centres)
        similarity = cosines.max(dim=1).values
        if isinstance(self.network, ClassifierNetwork):
            scores = classifier_logits(features, self.network, self.columns)
            return scores, scores.argmax(dim=1), similarity
        return cosines, nearest_centres(features, self.centres), similarity

    def _threshold(self, none_below: float | None, accept_all: bool) -> float:
        if none_below is not None and accept_all:
            raise ConfigError("--none-below sets a threshold and --accept-all has none; give only one of them")
        if none_below is not None:
            if not -1 <= none_below <= 1:
                raise ConfigError(f"--none-below is a cosine, -1 to 1, not {none_below}")
            return none_below
        if not accept_all and self.calibration.threshold is None:
            warnings.warn(
                f"{self.path} has no threshold for images of none of its categories, so all are accepted; "
                "give one as --none-below",
                PromptCALWarning,
                stacklevel=3,
            )
        return -math.inf if accept_all or self.calibration.threshold is None else self.calibration.threshold

    def assignments(self) -> Assignments:
        """What the fit assigned to its own images."""
        try:
            self.directory.verify_checksum(self.directory.assignments_file)
            with self.directory.assignments_file.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise RunError(f"{self.directory.assignments_file} cannot be read ({error}); fit again") from error
        except (ValueError, csv.Error) as error:
            raise self._damaged(self.directory.assignments_file, error) from error
        number = {name: i for i, name in enumerate(self.names)}
        try:
            found = Assignments(
                [_text(row["path"]) for row in rows],
                np.array([int(row["cluster"]) for row in rows], dtype=np.int64),
                np.array([float(row["confidence"]) for row in rows], dtype=np.float64),
                self.names,
                self.known,
                np.array([row["labelled"] == "yes" for row in rows], dtype=bool),
                np.array([number.get(row.get("second", ""), -1) for row in rows], dtype=np.int64),
                np.array([float(row.get("second_confidence") or 0) for row in rows], dtype=np.float64),
            )
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise self._damaged(self.directory.assignments_file, error) from error
        if not ((found.clusters >= 0) & (found.clusters < len(self.names))).all():
            raise self._damaged(self.directory.assignments_file, "a cluster that the run does not have")
        if not (np.isfinite(found.confidence).all() and np.isfinite(found.second_confidence).all()):
            raise self._damaged(self.directory.assignments_file, "a confidence that is no number")
        return found

    @staticmethod
    def _damaged(file: Path, why: object) -> RunError:
        return RunError(f"{file} is damaged ({' '.join(str(why).split())[:200]}); fit again with --overwrite")

    def held_out(self) -> list[str]:
        """Names of the images whose labels were kept back from training; older versions did not write them down."""
        if not self.directory.held_out_file.exists():
            return []
        try:
            names = json.loads(self.directory.held_out_file.read_text(encoding="utf-8"))
            if not isinstance(names, list):
                raise TypeError("not a list")
            return [_text(name) for name in names]
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(self.directory.held_out_file, error) from error

    def given_images(self) -> tuple[ImageSet, list[int]]:
        """The names of all images the fit was given, and the positions among them of those it assigned."""
        names = list(self.assignments().paths)
        skipped: list[int] = []
        if self.directory.skipped_file.exists():
            try:
                with self.directory.skipped_file.open(newline="", encoding="utf-8") as file:
                    table = csv.DictReader(file)
                    if not {"path", "position"} <= {*(table.fieldnames or ())}:
                        raise ValueError("its columns")
                    for row in table:  # by rising position, so that each finds its place
                        skipped.append(int(row["position"]))
                        if not 0 <= skipped[-1] <= len(names):
                            raise ValueError(f"the position {skipped[-1]}")
                        names.insert(skipped[-1], _text(row["path"]))
            except (KeyError, ValueError, TypeError, csv.Error) as error:
                raise self._damaged(self.directory.skipped_file, error) from error
        root = self.info.get("root")
        left_out = set(skipped)
        assigned = [i for i in range(len(names)) if i not in left_out]
        return ImageSet(names, _no_image, None if root is None else Path(root)), assigned

    def image_files(self) -> list[Path]:
        """The file of each image, in the order of the assignments."""
        names = self.assignments().paths
        folder = self.info.get("folder", self.info.get("root"))
        if folder is None:
            raise DataError(
                f"the images of {self.path} did not come from files (but from an array, a dataset or an archive), so "
                "there are none to link or copy; export to csv, or save them as files and fit those"
            )
        if self.info.get("root") is not None:
            reject_path_traversal(names, self.path)
        images = [Path(folder) / name for name in names]
        missing = [image for image in images if not image.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more images are" if len(missing) > 1 else " is"
            raise DataError(f"{missing[0]}{more} no longer there; put the images back where the fit found them")
        other = next((image for image in images if not is_image(image)), None)
        if other is not None:  # a run from elsewhere could name any file of this machine to be handed on
            raise DataError(f"{other} is no image (any more); put the images back where the fit found them")
        return images

    @staticmethod
    def _read(path: Path) -> dict[str, Tensor]:
        try:
            return files.read_safetensors(path)
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error}); fit again with --overwrite") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def reject_path_traversal(names: Sequence[str], run: Path) -> None:
    """Of images in a folder: no name may lead to another place."""
    for name in names:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise RunError(f"{run} names the image {name}, which lies outside of its image folder; do not trust it")


def _no_image(index: int) -> Any:
    raise NotImplementedError("a run keeps the names of its images, not the images")
