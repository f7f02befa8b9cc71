"""Step 1 of a fit: from inputs to decoded images, the final config and a network that is ready to train."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.config import Config
from promptcal.data import ImageSet, ImageStore, StreamedImages, StreamedView, View
from promptcal.data.loading import load_images, view_of
from promptcal.data.splits import hold_out
from promptcal.data.views import Normalise
from promptcal.discovery.class_count import ClassCount
from promptcal.methods import METHODS, WITHOUT_LABELS, settings_for
from promptcal.methods.base import Method, SeededViT, build_network, build_vit, trained_stages
from promptcal.models import DiscoveryNetwork
from promptcal.pipeline.begin import begin_run, fingerprint, run_info
from promptcal.pipeline.class_estimate import count_from_features, frozen_vit, stored_side
from promptcal.pipeline.clustering import embed_all
from promptcal.pipeline.inputs import FitInputs, Settings
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Problem, TestSet
from promptcal.pipeline.session import Session, say, warn
from promptcal.pipeline.shared_stage import SharedStage
from promptcal.pipeline.task import Task, TestImages
from promptcal.run.directory import RunDirectory
from promptcal.run.results import RunResults
from promptcal.runtime.device import choose_dtype
from promptcal.runtime.free_memory import check_sizes
from promptcal.runtime.phases import COUNTING, READING
from promptcal.runtime.progress import show_progress
from promptcal.runtime.seeds import derive_seed


@dataclass(frozen=True, kw_only=True)
class Prepared(Task):
    """Everything that training needs.

    ``oracle`` are the test images that selection "oracle" uses outside of the inductive protocol. ``results`` are what
    an earlier part of a resumed run measured. ``is_continued``: the network has the weights of a previous run.
    ``frozen_features`` are the embeddings of the images by the frozen backbone, if they are known already. ``trains``
    is False for the result of the weights as they are.
    """

    network: DiscoveryNetwork
    store: ImageStore | StreamedImages
    view: View | StreamedView
    resize: int
    oracle: TestImages | None
    shared: SharedStage | None
    results: RunResults
    is_resumed: bool
    is_continued: bool
    frozen_features: Tensor | None
    trains: bool = True

    def example_views(self, images: np.ndarray) -> tuple[Tensor, Normalise]:
        return next(iter(self.view.centres(torch.from_numpy(images), len(images)))), self.view.normalise

    @property
    def stages(self) -> list[str]:
        """The stages to train; a continued run trains only the last one."""
        return trained_stages(self.method, only_last=self.is_continued) if self.trains else []


class DecodedImages(NamedTuple):
    """Images in a store, the positions of the readable ones, and the name and fault of each other one."""

    store: ImageStore | StreamedImages
    kept: list[int]
    faults: list[tuple[str, str]]

    def skipped(self, n_images: int) -> list[tuple[str, str, int]]:
        """Name, fault and position of the unreadable ones of ``n_images``."""
        positions = sorted(set(range(n_images)) - set(self.kept))
        return [(name, fault, position) for (name, fault), position in zip(self.faults, positions, strict=True)]


def prepare(inputs: FitInputs, session: Session) -> Prepared:
    directory, group, previous = session.directory, session.group, inputs.previous
    settings = inputs.settings if inputs.problem.classes else _without_labels(inputs.settings)
    draft = settings.draft(len(inputs.problem.classes))
    is_continued = previous is not None and previous.can_initialize(draft)
    seeded = _build_vit(draft, session, pretrained=not is_continued)
    resize = stored_side(draft, seeded.vit)
    if METHODS[draft.method].trains:
        needs = METHODS[draft.method](draft).memory_needs(seeded.vit, len(inputs.problem.images), group.world)
        check_sizes(needs, session.device)
    images = _decode("reading", inputs.problem.images, draft, resize, inputs, session)
    if images.faults:
        warn(f"{len(images.faults)} unreadable images were skipped; see {directory.skipped_file}")
    problem = inputs.problem.kept(images.kept)
    if inputs.problem.classes and not problem.classes:  # no labelled image could be read
        settings = _without_labels(settings)
        draft, is_continued = settings.draft(0), False
        seeded = _build_vit(draft, session, pretrained=True)
    view = view_of(images.store, *seeded.vit.preprocessing, resize=resize, device=session.device)

    count, frozen_features = None, None
    if settings.estimates_classes and not inputs.resume:
        pretrained = _build_vit(draft, session, pretrained=True) if is_continued else seeded
        count, frozen_features = _estimate_classes(problem, draft, pretrained, view, session)
    n_classes = count.start if count is not None else inputs.resumed_n_classes(directory)
    config = settings.config(n_classes)
    problem.check(config.n_classes)

    method = METHODS[config.method](config)
    network = build_network(method, seeded, len(problem.classes))
    if previous is not None and is_continued:
        previous.load_into(network, problem, config.n_classes)
    network.to(session.device)
    network.join_process_group(group)

    info = run_info(inputs, problem, config, resize, fingerprint(images.store, problem, previous))
    if inputs.shared is not None:
        inputs.shared.check(method, info.fingerprint)
    skipped = images.skipped(len(inputs.problem.images))
    group.on_first(lambda: begin_run(directory, info, config, count, skipped, resume=inputs.resume))
    found = group.on_first(lambda: directory.results() if inputs.resume else None)
    interval = group.on_first(lambda: _count_interval(directory)) if config.n_classes_estimated else None
    return Prepared(
        problem=problem,
        config=config,
        method=method,
        network=network,
        held_out=held_out(problem, method, previous, is_continued),
        previous=previous,
        released=inputs.released,
        keep_confirmed=inputs.keep_confirmed,
        pictures=images.store,
        test=_test_images(problem.test_set, draft, seeded, resize, inputs, session),
        count_interval=interval,
        store=images.store,
        view=view,
        resize=resize,
        oracle=_test_images(problem.oracle, draft, seeded, resize, inputs, session),
        shared=inputs.shared,
        results=found
        or RunResults(method=config.method, protocol=problem.protocol, unmet_conditions=inputs.unmet_conditions),
        is_resumed=inputs.resume,
        is_continued=is_continued,
        frozen_features=frozen_features,
    )


def _count_interval(directory: RunDirectory) -> tuple[int, int] | None:
    file = directory.class_count_file
    return ClassCount.read(file).interval if file.is_file() else None


def _without_labels(settings: Settings) -> Settings:
    """Settings of the method for fits without labels; those of the chosen method's own sections are dropped."""
    warn("no image is labelled, so nothing can be learned: this is plain k-means on the backbone's features")
    return Settings(settings_for(WITHOUT_LABELS, settings.values))


def _build_vit(config: Config, session: Session, *, pretrained: bool) -> SeededViT:
    method = METHODS[config.method](config)
    seeded = build_vit(method, pretrained=pretrained)
    seeded.vit.set_compute_dtype(choose_dtype(config.precision, session.device))
    return seeded


def _decode(
    title: str, images: ImageSet, config: Config, resize: int, inputs: FitInputs, session: Session
) -> DecodedImages:
    with session.clock.phase(READING), show_progress(session.console, title, len(images)) as show:
        cache = config.data.cache
        found = load_images(
            images,
            resize,
            store=config.data.store,
            cache=None if cache is None else Path(cache),
            run_parent=session.directory.path.parent,
            skip_unreadable=inputs.skip_unreadable,
            on_progress=show,
            group=session.group,
        )
    return DecodedImages(*found)


def _test_images(
    test: TestSet | None, config: Config, seeded: SeededViT, resize: int, inputs: FitInputs, session: Session
) -> TestImages | None:
    if test is None:
        return None
    images = _decode("reading test images", test.images, config, resize, inputs, session)
    if images.faults:
        warn(f"{len(images.faults)} unreadable test images were skipped")
    view = view_of(images.store, *seeded.vit.preprocessing, resize=resize, device=session.device)
    return TestImages(view, [test.truth[i] for i in images.kept])


def _estimate_classes(
    problem: Problem, config: Config, seeded: SeededViT, view: View | StreamedView, session: Session
) -> tuple[ClassCount, Tensor]:
    """Estimate in the embeddings of the pretrained backbone, which are returned too; the images are decoded already."""
    problem.check(max(1, len(problem.classes)))
    plain = frozen_vit(seeded.vit, config, session.device).eval()
    features = embed_all(plain, view, len(problem.images), "embedding", session)
    with session.clock.phase(COUNTING, session.device):
        count = session.group.on_first(
            lambda: count_from_features(features, problem.labels, problem.counts, config, session.console)
        )
    say(
        f"The number of categories is estimated: {count.description}, {len(problem.classes)} of them known "
        f"({count.reason}); --n-classes sets another number",
        session,
    )
    if count.interval is not None:
        say(
            f"Training starts with {count.start}, the upper end; afterwards there can be fewer categories, down to the "
            "lower end",
            session,
        )
    return count, features


def held_out(problem: Problem, method: Method[Any], previous: PreviousRun | None, is_continued: bool) -> np.ndarray:
    """Labels held out from training to select an epoch, or to compare training with the first result."""
    config = method.config
    if problem.inductive is not None:
        return np.where(problem.inductive.validation, problem.labels, -1)
    if (config.selection.by != "validation" and config.selection.keep != "better") or not problem.classes:
        return np.full(len(problem.labels), -1)
    allowed = None if previous is None else previous.unused_labels(problem)
    seed = derive_seed(config.seed, "validation")
    mask = hold_out(problem.labels, config.data.validation_fraction, seed, allowed)
    selects = config.selection.by == "validation" and trained_stages(method, only_last=is_continued)
    if selects and not mask.any():
        warn("no label can be held out to select an epoch, so the last epoch is kept")
    return np.where(mask, problem.labels, -1)
