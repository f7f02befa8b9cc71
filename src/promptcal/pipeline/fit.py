"""The whole method, from images and labels to a finished run directory."""

import copy
import hashlib
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from promptcal.config.schema import Config
from promptcal.data import BalancedSampler, ImageSet, ImageStore, StreamedImages, StreamedView, View
from promptcal.data.loading import read, view_of
from promptcal.data.splits import hold_out
from promptcal.data.store import decode
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.discovery.calibration import Calibration, calibrate_run
from promptcal.discovery.class_count import ClassCount
from promptcal.discovery.partition import (
    Partition,
    centroid_probabilities,
    choices,
    classifier_logits,
    classifier_probabilities,
)
from promptcal.errors import ConfigError, Interrupted, PromptCALWarning, RunError
from promptcal.exporters.table_files import write_parquet_if_installed
from promptcal.methods import StageContext, method_of
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.warmup import Distillation
from promptcal.metrics import DiscoveryAccuracy, discovery_accuracy
from promptcal.models import ClassifierNetwork, PromptedViT, TrainedNetwork
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Inductive, Problem
from promptcal.pipeline.shared_warmup import WARMUP, SharedWarmup
from promptcal.report.attention_panels import Examples, choose_examples
from promptcal.report.class_count_curves import write_class_count
from promptcal.report.contact_sheets import write_contact_sheets
from promptcal.report.thumbnails import make_thumbnails, select_images
from promptcal.run.inference import (
    Assignments,
    RunDirectory,
    build_network,
    category_names,
    stored_side,
    training_temperature,
)
from promptcal.runtime import distributed, files
from promptcal.runtime.device import (
    choose_compile,
    choose_device,
    choose_dtype,
    compile_in_place,
    deterministic_mode,
    device_context,
)
from promptcal.runtime.interrupts import StopRequest
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed, isolated_rng
from promptcal.training.embedding import embed
from promptcal.training.loop import Loop, TrainingData
from promptcal.training.shared import SharedCheckpoints, recorder_of
from promptcal.training.stage import Stage
from promptcal.training.validation import Selector


class UnseenImages(NamedTuple):
    """Of the inductive protocol: views of the test images that could be read, and their true classes."""

    view: View | StreamedView
    truth: list[str]


class Fit:
    """One fit in its run directory. `run` is any method from top to bottom, or from where an ``earlier`` run ended."""

    def __init__(
        self,
        problem: Problem,
        config: Config,
        directory: RunDirectory,
        console: Console,
        class_count: ClassCount | None = None,
        earlier: PreviousRun | None = None,
        warmup: SharedWarmup | None = None,
    ) -> None:
        self.problem = problem
        self.earlier = earlier
        self.warmup = warmup
        self.config = config
        self.directory = directory
        self.console = console
        self.class_count = class_count
        self.device = choose_device(config.device)
        self.group = distributed.group()
        self.checkpoints = SharedCheckpoints(directory.checkpoints_folder, self.group, self._elapsed)
        self.spent_before = 0.0  # by the pieces of the run before this one, up to the checkpoint it goes on from
        self.results: dict[str, Any] = {}
        self.group.check(config.data.batch_size, self.device)
        if config.selection.by == "oracle" and problem.truth is None:
            raise ConfigError("selection.by=oracle needs the truth; give --truth or choose validation or last")

    def run(
        self, *, resume: bool, overwrite: bool = False, skip_unreadable: bool, stop_after: float | None = None
    ) -> None:
        """``stop_after`` minutes training ends at a checkpoint, as if by Ctrl-C."""
        self.started = time.monotonic()
        deadline = None if stop_after is None else self.started + 60 * stop_after
        with (
            self.group.locked_by_first(self.directory.locked()),
            StopRequest(self._say_stopping, deadline).listening() as self.stop,
            device_context(self.device, choose_dtype(self.config.precision, self.device)),
            deterministic_mode(self.config.deterministic),
        ):
            is_there = self.group.on_first(lambda: self.directory.check_free(resume=resume, overwrite=overwrite))
            if resume and not is_there:
                _warn(f"the run in {self.directory.path} was stopped before it began, so it starts from the beginning")
            try:
                self._run(is_there, skip_unreadable)
            except KeyboardInterrupt:
                raise Interrupted("stopped; run the same command with --resume to go on", self.stop.exit_code) from None
            except OSError as error:  # no room, or not the disk it was
                how = "with --resume" if self.directory.exists() else "again"
                raise RunError(
                    f"{_in_words(error)}; {self.checkpoints.describe_last()}: fix this, then run the same command {how}"
                ) from error

    def _elapsed(self) -> float:
        """Seconds this run has taken so far, in all its pieces."""
        return self.spent_before + time.monotonic() - self.started

    def _run(self, resume: bool, skip_unreadable: bool) -> None:
        self._build()
        self.resize = stored_side(self.config, self.network.vit)
        store = self._decode(skip_unreadable)
        if not self.problem.classes:
            self._do_without_training()
        self.results = self.group.on_first(lambda: self._prepare_directory(store, resume))
        self.view = self._view(store)
        self.all_images = torch.arange(len(store))
        if self.problem.inductive is not None:
            self.test = self._read_test(self.problem.inductive, skip_unreadable)
        if self.problem.can_be_scored and not self._goes_on:
            self._score_frozen()
        self.held_out = self._held_out()
        with isolated_rng(derive_seed(self.config.seed, "backbone")):  # for those that drop out; nothing else asks
            self._train(self.stop, resume)
        self._finish(store)

    # -- before training ------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.method = method_of(self.config)
        network = build_network(self.config, len(self.problem.classes), pretrained=not self._goes_on)
        if self.earlier is not None and self._goes_on:
            self.earlier.load_into(network, self.problem, self.config.n_classes)
        self.network = network.to(self.device)
        self.network.vit.set_compute_dtype(choose_dtype(self.config.precision, self.device))
        self.network.join(self.group)

    @property
    def _goes_on(self) -> bool:
        """Whether training starts from an earlier run's weights."""
        return self.earlier is not None and self.earlier.can_initialize(self.config)

    def _do_without_training(self) -> None:
        _warn("no image is labelled, so nothing can be learned: this is plain k-means on the backbone's features")
        without_prompts = self.config.model.model_copy(update={"prompts": 0})
        kmeans = {"method": "kmeans", "variant": "official", "model": without_prompts}
        self.config = self.config.model_copy(update=kmeans)
        self._build()

    def _decode(self, skip_unreadable: bool) -> ImageStore | StreamedImages:
        store, kept, self.skipped = self._read("reading", self.problem.images, skip_unreadable)
        self.gaps = sorted(set(range(len(self.problem.images))) - set(kept))
        n_known = len(self.problem.classes)
        self.problem = self.problem.kept(kept)
        if self.skipped:
            _warn(f"{len(self.skipped)} unreadable images are left out; see {self.directory.skipped_file}")
            self.problem.check(self.config.n_classes)
        if len(self.problem.classes) != n_known:
            self._build()
        return store

    def _read_test(self, inductive: Inductive, skip_unreadable: bool) -> UnseenImages:
        store, kept, faults = self._read("reading test images", inductive.test, skip_unreadable)
        if faults:
            _warn(f"{len(faults)} unreadable test images are left out")
        return UnseenImages(self._view(store), [inductive.truth[i] for i in kept])

    def _read(
        self, what: str, images: ImageSet, skip_unreadable: bool
    ) -> tuple[ImageStore | StreamedImages, list[int], list[tuple[str, str]]]:
        """The images in the kind of store that is set, the positions of those kept, names and faults of the others."""
        with progress_bar(self.console) as bar:
            task = bar.add_task(what, total=len(images), note="")
            settings = self.config.data
            return read(
                images,
                self.resize,
                store=settings.store,
                cache=None if settings.cache is None else Path(settings.cache),
                beside=self.directory.path.parent,
                skip_unreadable=skip_unreadable,
                on_progress=lambda done: bar.update(task, completed=done),
                group=self.group,
            )

    def _view(self, store: ImageStore | StreamedImages) -> View | StreamedView:
        sizes, zoom = self.network.vit.preprocessing, self.config.data.zoom
        return view_of(store, *sizes, resize=self.resize, zoom=zoom, device=self.device)

    def _prepare_directory(self, store: ImageStore | StreamedImages, resume: bool) -> dict[str, Any]:
        """Begin or go on with the run directory; returns what an earlier part of the run has measured."""
        fingerprint = self._fingerprint(store)
        launch = {} if distributed.launch() is None else {"launch": distributed.launch()}
        if self.warmup is not None:
            self.warmup.check(self.config, fingerprint)
        if resume:
            self._check_same_run(fingerprint)
            if launch:
                self.directory.write_info({**self.directory.info(), **launch})
            if self.directory.results_file.exists():
                return json.loads(self.directory.results_file.read_text(encoding="utf-8"))
            return {}
        self.directory.clear()
        files.write_text(self.directory.config_file, self.config.to_yaml())
        if self.class_count is not None:
            write_class_count(self.directory.path, self.class_count)
        if self.skipped:
            rows = [(name, reason, position) for (name, reason), position in zip(self.skipped, self.gaps, strict=True)]
            files.write_csv(self.directory.skipped_file, ["path", "reason", "position"], rows)
        started = {} if self.earlier is None else {"started_from": str(self.earlier.path.absolute())}
        about = {**self._description(), **started, **launch, "fingerprint": fingerprint}
        self.directory.write_info({"status": "running", **about})
        return {}

    def _description(self) -> dict[str, Any]:
        root = self.problem.images.root
        return {
            "root": None if root is None else str(root.absolute()),
            "folder": self.problem.images.folder(),
            "n_images": len(self.problem.images),
            "n_labelled": int((self.problem.labels >= 0).sum()),
            "known_classes": self.problem.classes,
            "resize": self.resize,
            "n_classes": self.config.n_classes,
            "n_classes_estimated": self.config.n_classes_estimated,
        }

    def _fingerprint(self, store: ImageStore | StreamedImages) -> str:
        """Of everything a resumed run must find unchanged: pixels, names, labels."""
        pixels = store.digest if isinstance(store, StreamedImages) else store.pixels.numpy().data
        digest = hashlib.sha256(pixels)
        digest.update("\0".join(self.problem.images.names).encode("utf-8", "surrogateescape"))
        digest.update(self.problem.labels.tobytes())
        if self.problem.inductive is not None:
            digest.update(self.problem.inductive.validation.tobytes())
        if self.earlier is not None:
            digest.update(self.earlier.digest)
        return digest.hexdigest()

    def _check_same_run(self, fingerprint: str) -> None:
        if self.directory.info()["fingerprint"] != fingerprint:
            raise RunError(
                f"the run in {self.directory.path} was made with other images or labels; give the same ones to resume"
            )
        earlier, now = self.directory.config().model_dump(), self.config.model_dump()
        changed = sorted(_flatten(earlier).items() - _flatten(now).items())
        if changed:
            key, value = changed[0]
            raise RunError(
                f"the run in {self.directory.path} has {key}={value}; give the same settings to resume, "
                "or --overwrite to start anew"
            )

    # -- training ---------------------------------------------------------------------------------------------

    def _train(self, stop: StopRequest, resume: bool) -> None:
        """The method's stages, each from the best weights of the one before."""
        stages = self._stages()
        if not stages:
            return
        state = self.checkpoints.load_last() if resume else None
        self.spent_before = state.get("seconds", 0.0) if state else 0.0
        self.recorder = recorder_of(self.group, self.directory.path, self.console, tensorboard=self.config.tensorboard)
        self.recorder.rewind(state["records"] if state else 0)  # forget what came after the last checkpoint
        labels = np.where(self.held_out >= 0, -1, self.problem.labels)
        data = TrainingData(
            self.view,
            torch.from_numpy(labels).to(self.device),
            self._sampler(labels),
            self.group.part(self.config.data.batch_size),
        )
        selector = self._selector(labels, self.held_out)
        epochs = sum(self.method.epochs()[name] for name in stages)
        self._compile_if_worth_it(epochs * data.sampler.steps_per_epoch)
        is_shared = self.warmup is not None and state is None
        if is_shared:
            self.results[WARMUP] = self.group.on_first(self._take_over_warmup)
        for place, name in enumerate(stages):
            if state is not None and state["stage"] != name:
                continue  # done before the run was stopped
            if is_shared and name == WARMUP:
                continue
            if place:
                self.checkpoints.load_best(stages[place - 1], self.network)
            stage = self.method.stage(name, self.network, self._surroundings(labels, is_begun=state is not None))
            self._run_stage(stage, data, selector, stop, state)
            state = None

    def _take_over_warmup(self) -> dict[str, Any]:
        assert self.warmup is not None
        taken = self.warmup.copy_into(self.checkpoints, self.recorder.path)
        files.write_json(self.directory.results_file, {**self.results, WARMUP: taken})
        return taken

    def _compile_if_worth_it(self, steps: int) -> None:
        vit = self.network.vit
        compiled = choose_compile(self.config.compile, self.device, steps)
        if compiled:
            # what an earlier fit of this process recorded would hold its GPU memory, and what it compiled would count
            # towards the number of versions after which the compiler gives up
            torch.compiler.reset()
            compile_in_place(vit, self.device, alone=self.group.world == 1)
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        how = ", compiled (the first steps take half a minute)" if compiled else ""
        how += f", in {self.group.world} processes" if self.group.world > 1 else ""
        self.console.print(
            f"Training on {name} in {str(vit.compute_dtype).removeprefix('torch.')}{how}", highlight=False
        )

    def _sampler(self, labels: np.ndarray) -> BalancedSampler:
        inductive = self.problem.inductive
        drawn = None if inductive is None else torch.from_numpy(~inductive.validation)
        return BalancedSampler(torch.from_numpy(labels >= 0), self.config.data.batch_size, drawn)

    def _stages(self) -> list[str]:
        """The stages that train for at least an epoch, in order; from an earlier run's weights only the last one."""
        epochs = list(self.method.epochs().items())
        return [name for name, n in (epochs[-1:] if self._goes_on else epochs) if n]

    def _surroundings(self, labels: np.ndarray, *, is_begun: bool) -> StageContext:
        truth = self.problem.truth_numbers()
        return StageContext(
            None if truth is None else torch.from_numpy(truth).to(self.device),
            len(self.problem.classes),
            self._distillation,
            None if is_begun else lambda: self._centres(labels),
        )

    def _centres(self, labels: np.ndarray) -> Tensor:
        """Of the categories as the network stands, known classes first, by the labels it is trained with."""
        features = self._embed(self.network, "embedding")
        return torch.from_numpy(self._cluster(features, labels).cluster_centers_)

    def _distillation(self) -> Distillation | None:
        settings = self.config.warmup
        if settings.distillation is None:
            return None
        store, _, faults = decode(ImageSet.of(settings.distillation), self.resize, skip_unreadable=True)
        if faults:
            _warn(f"{len(faults)} images in {settings.distillation} cannot be read and are not distilled on")
        # the student's trunk is as it came here even in a resumed run, whose weights are put in place later
        frozen = PromptedViT(copy.deepcopy(self.network.vit.backbone), prompts=0, train_blocks=0)
        frozen.set_compute_dtype(self.network.vit.compute_dtype)
        sizes = self.network.vit.preprocessing
        return Distillation(
            frozen,
            View(store.placed(self.device), *sizes, resize=self.resize, device=self.device),
            self.config.data.batch_size,
            settings.distillation_weight,
            settings.distillation_epochs,
        )

    def _held_out(self) -> np.ndarray:
        """Labels kept back from training to select by (-1 elsewhere)."""
        nothing = np.full(len(self.problem.labels), -1)
        if self.problem.inductive is not None:
            return np.where(self.problem.inductive.validation, self.problem.labels, -1)
        if self.config.selection.by != "validation" or not self.problem.classes:
            return nothing
        mask = hold_out(
            self.problem.labels,
            self.config.data.validation_fraction,
            derive_seed(self.config.seed, "validation"),
            None if self.earlier is None else self.earlier.unseen_label_mask(self.problem.images.names),
        )
        if not mask.any() and self._stages():
            _warn("no label can be spared to select an epoch by, so the last one is kept")
        return np.where(mask, self.problem.labels, -1)

    def _selector(self, labels: np.ndarray, held_out: np.ndarray) -> Selector | None:
        by, inductive = self.config.selection.by, self.problem.inductive
        if by == "last" or (by == "validation" and not (held_out >= 0).any()):
            return None
        truth = self.problem.truth_numbers() if by == "oracle" else None
        validation = None if inductive is None else inductive.validation
        return Selector(self.view, labels, held_out, self.config, truth, validation)

    def _run_stage(
        self,
        stage: Stage,
        data: TrainingData,
        selector: Selector | None,
        stop: StopRequest,
        state: dict[str, Any] | None,
    ) -> None:
        epochs = self.method.epochs()[stage.name]
        look: Callable[[], Any] | None = None
        if selector is not None:
            look = lambda: selector.look(self.network, stage.name)  # noqa: E731
        loop = Loop(
            stage,
            data,
            epochs=epochs,
            optim=self.config.optim,
            seed=self.config.seed,
            look=look,
            validate_every=self.config.selection.every,
            checkpoints=self.checkpoints,
            recorder=self.recorder,
            stop=stop,
        )
        if state is not None:
            loop.restore(state)
        if isinstance(stage, AffinityStage) and stage.about:
            self.console.print(stage.about, highlight=False)
        with stop.waiting():
            loop.run()
        self.results[stage.name] = {
            "best_epoch": loop.position.best_epoch,
            "epochs": epochs,
            "score": loop.position.best_score,
        }
        if self.group.is_first:
            files.write_json(self.directory.results_file, self.results)
        if stop.requested_by_any(self.group):
            raise Interrupted(f"stopped after {stage.name}; run the same command with --resume", stop.exit_code)

    def _say_stopping(self) -> None:
        self.console.print("Stopping after this step; press Ctrl-C again to stop at once.")

    # -- after training ---------------------------------------------------------------------------------------

    def _finish(self, store: ImageStore | StreamedImages) -> None:
        """Assign with the kept weights and write what a user takes away."""
        stages = self._stages()
        if self.problem.can_be_scored:
            last_epoch = self._score_on_the_way(stages)
        if stages:
            self.checkpoints.load_best(stages[-1], self.network)
        features = self._embed(self.network, "embedding")
        partition = self._assign(features)
        if self.problem.can_be_scored:
            self._score_end(partition, stages, last_epoch)
        self.calibration = self._calibrate(features, partition)
        partition = partition.new_by_size(len(self.problem.classes))
        names = category_names(self.problem.classes, self.config.n_classes)
        if self.earlier is not None:
            problem = self.problem
            partition, names = self.earlier.renumbered(partition, problem.classes, problem.labels, problem.images.names)
        chosen = choices(self._shares(features, partition), torch.from_numpy(partition.clusters))
        assignments = Assignments(
            self.problem.images.names,
            chosen.clusters,
            chosen.confidence,
            names,
            [name in self.problem.classes for name in names],
            self.problem.labels >= 0,
            chosen.second,
            chosen.second_confidence,
        )
        if self.group.is_first:
            self._write(store, features, partition, assignments)

    def _assign(self, features: Tensor) -> Partition:
        """Every image in a cluster, the method's way; labelled ones in their class."""
        labels = self.problem.labels
        if isinstance(self.network, ClassifierNetwork):
            return Partition.by_classifier(features, self.network).keeping(labels)
        kmeans = self._cluster(features, labels if self.method.uses_labels_to_cluster else None)
        partition = Partition(kmeans.labels_, torch.from_numpy(kmeans.cluster_centers_))
        return (partition if self.method.uses_labels_to_cluster else partition.named_by(labels)).keeping(labels)

    def _shares(self, features: Tensor, partition: Partition) -> Tensor:
        """The share of each cluster in each image."""
        if isinstance(self.network, ClassifierNetwork):
            assert partition.columns is not None
            return classifier_probabilities(features, self.network, partition.columns, self.calibration.temperature)
        return centroid_probabilities(features, partition.centres, self.calibration.temperature)

    def _calibrate(self, features: Tensor, partition: Partition) -> Calibration:
        logits = None
        if isinstance(self.network, ClassifierNetwork):
            assert partition.columns is not None
            logits = classifier_logits(features, self.network, partition.columns)
        found = calibrate_run(
            features,
            partition,
            self.problem.labels,
            self.held_out,
            logits=logits,
            labels_in_centres=self.method.uses_labels_to_cluster,
            temperature=training_temperature(self.config, self.network),
        )
        if not found.n and self.problem.classes:
            _warn("no label can be spared to calibrate by, so confidences are as they are")
        return found

    def _embed(self, network: TrainedNetwork | PromptedViT, what: str) -> Tensor:
        return self._embed_with(network, self.view, self.all_images, what)

    def _embed_with(
        self, network: TrainedNetwork | PromptedViT, view: View | StreamedView, images: Tensor, what: str
    ) -> Tensor:
        with progress_bar(self.console) as bar:
            task = bar.add_task(what, total=len(images), note="")
            return embed(
                network, view, images, on_progress=lambda done: bar.update(task, completed=done), group=self.group
            )

    def _cluster(self, features: Tensor, labels: np.ndarray | None) -> SemiSupervisedKMeans:
        settings = self.config.clustering
        kmeans = SemiSupervisedKMeans(
            self.config.n_classes,
            settings.n_init,
            settings.max_iter,
            settings.tol,
            random_state=derive_seed(self.config.seed, "kmeans"),
        )
        with progress_bar(self.console) as bar:
            known = 0 if labels is None else len(np.unique(labels[labels >= 0]))
            starts = settings.n_init if known < self.config.n_classes else 1  # nothing is random then
            task = bar.add_task("clustering", total=starts, note="")
            show = lambda done: bar.update(task, completed=done)  # noqa: E731
            return self.group.on_first(lambda: kmeans.fit(features, labels, on_progress=show))

    def _score_frozen(self) -> None:
        """The backbone as it came: what any of this is worth is the gain over this."""
        plain = PromptedViT(self.network.vit.backbone, prompts=0, train_blocks=self.config.model.train_blocks)
        plain.set_compute_dtype(self.network.vit.compute_dtype)
        if self.problem.inductive is not None:  # the test images have no labels to give to k-means
            self._record("kmeans", self._score_test(plain, "frozen test features"))
            return
        features = self._embed(plain, "frozen features")
        self._score("kmeans", self._cluster(features, None).labels_)
        self._score("semi_supervised_kmeans", self._cluster(features, self.problem.labels).labels_)

    def _score_on_the_way(self, stages: list[str]) -> DiscoveryAccuracy | None:
        """Score the kept weights of each stage but the last; return how those training ended with fare.

        None where these are the kept ones.
        """
        for name in stages[:-1]:
            self.checkpoints.load_best(name, self.network)
            self._record(name, self._score_now(f"{name} features"))
        if not stages or self.results[stages[-1]]["best_epoch"] == self.results[stages[-1]]["epochs"]:
            return None
        self.checkpoints.load_last_weights(self.network)
        return self._score_now("features of the last epoch")

    def _score_end(self, partition: Partition, stages: list[str], last: DiscoveryAccuracy | None) -> None:
        """The end result, with the selected weights and with the last epoch's."""
        if self.problem.inductive is None:
            selected = self.problem.score(partition.clusters)
        else:
            selected = self._score_test(self.network, "test features")
        if stages:
            self._record(stages[-1], selected)
        self.results["scores"] = {"selected": asdict(selected), "last": asdict(last or selected)}

    def _score_now(self, what: str) -> DiscoveryAccuracy:
        """How the network fares as it is, under the problem's protocol."""
        if self.problem.inductive is not None:
            return self._score_test(self.network, what)
        return self.problem.score(self._assign(self._embed(self.network, what)).clusters)

    def _score_test(self, network: TrainedNetwork | PromptedViT, what: str) -> DiscoveryAccuracy:
        """Inductive: the test images by the network's classifier if it has one, else by k-means without labels."""
        images = torch.arange(len(self.test.truth))
        features = self._embed_with(network, self.test.view, images, what)
        if isinstance(network, ClassifierNetwork):
            clusters = Partition.by_classifier(features, network).clusters
        else:
            clusters = self._cluster(features, None).labels_
        return discovery_accuracy(self.test.truth, clusters, self.problem.classes)

    def _score(self, name: str, clusters: np.ndarray) -> None:
        self._record(name, self.problem.score(clusters))

    def _record(self, name: str, accuracy: DiscoveryAccuracy) -> None:
        self.results.setdefault(name, {})["accuracy"] = asdict(accuracy)

    def _write(
        self, store: ImageStore | StreamedImages, features: Tensor, partition: Partition, assignments: Assignments
    ) -> None:
        directory = self.directory
        files.write_safetensors(directory.model_file, self.network.state_dict())
        columns = {} if partition.columns is None else {"columns": partition.columns}
        files.write_safetensors(directory.centres_file, {"centres": partition.centres, **columns})
        files.write_with(directory.embeddings_file, lambda temporary: _save_array(temporary, features.cpu().numpy()))
        files.write_text(directory.assignments_file, assignments.to_csv())
        write_parquet_if_installed(directory.assignments_parquet_file, assignments.table())
        self.calibration.write(directory.calibration_file)
        held_out = [name for name, label in zip(assignments.paths, self.held_out, strict=True) if label >= 0]
        files.write_json(directory.held_out_file, held_out)
        if self.earlier is not None:
            changes = self.earlier.changes(assignments)
            changes.write(directory.changes_file, directory.changes_summary_file)
            self.results["changes"] = changes.summary()
        write_contact_sheets(directory.sheets_folder, store, assignments)
        self._keep_for_reports(store, assignments)
        protocol = "transductive" if self.problem.inductive is None else "inductive"
        self.results |= {"method": self.config.method, "protocol": protocol}
        self.results["seconds"] = round(self._elapsed(), 1)
        files.write_json(directory.results_file, self.results)
        info = directory.info()
        info["sha256"] = {
            file.name: files.file_digest(file)
            for file in (
                directory.config_file,
                directory.model_file,
                directory.centres_file,
                directory.embeddings_file,
                directory.assignments_file,
            )
        }
        if self.earlier is not None:
            info["former_names"] = self.earlier.former_names(assignments.names)
        directory.write_info({**info, "status": "finished", "categories": assignments.names})

    def _keep_for_reports(self, store: ImageStore | StreamedImages, assignments: Assignments) -> None:
        """Small pictures, a few examples as the network sees them, and the truth: a report needs no image folder."""
        shown = select_images(assignments)
        with progress_bar(self.console) as bar:
            task = bar.add_task("thumbnails", total=len(shown), note="")
            thumbnails = make_thumbnails(store, shown, on_progress=lambda done: bar.update(task, completed=done))
        thumbnails.write(self.directory.thumbnails_folder)
        chosen = choose_examples(assignments)
        if len(chosen):
            views = next(iter(self.view.centres(torch.from_numpy(chosen), len(chosen))))
            Examples.from_views(views, chosen, self.view.normalise).write(self.directory.examples_file)
        if self.problem.truth is not None:
            self.directory.write_truth(self.problem.images.names, self.problem.truth)


def _warn(message: str) -> None:
    warnings.warn(message, PromptCALWarning, stacklevel=2)


def _in_words(error: OSError) -> str:
    """What went wrong and with which file, without the system's number for it."""
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{reason}: {error.filename}"


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _save_array(path: Any, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)
