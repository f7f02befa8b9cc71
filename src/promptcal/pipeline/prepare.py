"""Step 1 of a fit: from inputs to decoded images, the final config and a network that is ready to train."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptcal.config import Config, flatten
from promptcal.data import ImageSet, ImageStore, StreamedImages, StreamedView, View
from promptcal.data.loading import load_images, view_of
from promptcal.data.splits import hold_out
from promptcal.discovery.class_count import ClassCount
from promptcal.errors import RunError
from promptcal.methods import METHODS, WITHOUT_LABELS
from promptcal.methods.base import Method, SeededViT, build_network, build_vit, trained_stages
from promptcal.models import DiscoveryNetwork
from promptcal.pipeline.class_estimate import count_from_features, frozen_vit, stored_side
from promptcal.pipeline.clustering import embed_all
from promptcal.pipeline.inputs import FitInputs, Settings
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Inductive, Problem
from promptcal.pipeline.session import Session, warn
from promptcal.pipeline.shared_stage import SharedStage
from promptcal.report.class_count_curves import write_class_count
from promptcal.run.info import RunInfo
from promptcal.run.results import Protocol, RunResults
from promptcal.runtime import distributed, files
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed

Store = ImageStore | StreamedImages


@dataclass(frozen=True)
class TestImages:
    """The readable test images of the inductive protocol, and their true classes."""

    view: View | StreamedView
    truth: list[str]


@dataclass(frozen=True)
class Prepared:
    """Everything that training needs.

    ``held_out`` are labels held out from training to select an epoch (-1 elsewhere), ``results`` what an earlier part
    of a resumed run measured. ``is_continued``: the network has the weights of a previous run.
    """

    problem: Problem
    config: Config
    method: Method[Any]
    network: DiscoveryNetwork
    store: Store
    view: View | StreamedView
    resize: int
    test: TestImages | None
    held_out: np.ndarray
    previous: PreviousRun | None
    shared: SharedStage | None
    results: RunResults
    is_resumed: bool
    is_continued: bool

    @property
    def training_labels(self) -> np.ndarray:
        """-1 where unlabelled or held out."""
        return np.where(self.held_out >= 0, -1, self.problem.labels)

    @property
    def stages(self) -> list[str]:
        """The stages to train; a continued run trains only the last one."""
        return trained_stages(self.method, only_last=self.is_continued)


@dataclass(frozen=True)
class DecodedImages:
    """Images in a store, the positions of the readable ones, and the name and fault of each other one."""

    store: Store
    kept: list[int]
    faults: list[tuple[str, str]]


def prepare(inputs: FitInputs, session: Session, *, skip_unreadable: bool) -> Prepared:
    settings, previous = inputs.settings, inputs.previous
    if not inputs.problem.classes:
        settings = _without_labels(settings)
    draft = settings.config(n_classes=max(1, len(inputs.problem.classes)))  # all but the number of classes is final
    is_continued = previous is not None and previous.can_initialize(draft)
    seeded = _build_vit(draft, session, pretrained=not is_continued)
    resize = stored_side(draft, seeded.vit)
    images = _decode("reading", inputs.problem.images, draft, resize, session, skip_unreadable)
    problem = _readable_problem(inputs, images, session)
    if inputs.problem.classes and not problem.classes:  # no labelled image could be read
        settings = _without_labels(settings)
        draft, is_continued = settings.config(n_classes=1), False
        seeded = _build_vit(draft, session, pretrained=True)
    view = _view(images.store, seeded, resize, session)
    count = _estimate(settings, inputs, problem, draft, seeded, view, session, is_continued)
    config = settings.config(_known_count(inputs, session) if count is None else count.n_classes)
    problem.check(config.n_classes)

    method = METHODS[config.method](config)
    network = build_network(method, seeded, len(problem.classes))
    if previous is not None and is_continued:
        previous.load_into(network, problem, config.n_classes)
    network.to(session.device)
    network.join_process_group(session.group)

    fingerprint = _fingerprint(images.store, problem, previous)
    info = _info(inputs, problem, config, resize, fingerprint)
    if inputs.shared is not None:
        inputs.shared.check(method, fingerprint)
    session.group.on_first(lambda: _begin_directory(inputs, images, config, info, count, session))
    protocol: Protocol = "transductive" if problem.inductive is None else "inductive"
    results = session.group.on_first(
        lambda: (
            (session.directory.results() if inputs.resume else None)
            or RunResults(method=config.method, protocol=protocol)
        )
    )
    test = None
    if problem.inductive is not None:
        test = _decode_test(problem.inductive, config, seeded, resize, session, skip_unreadable)
    return Prepared(
        problem,
        config,
        method,
        network,
        images.store,
        view,
        resize,
        test,
        _held_out(problem, config, previous, method, is_continued),
        previous,
        inputs.shared,
        results,
        inputs.resume,
        is_continued,
    )


def _without_labels(settings: Settings) -> Settings:
    """Settings of the method for fits without labels; settings of the chosen method's own sections are dropped."""
    warn("no image is labelled, so nothing can be learned: this is plain k-means on the backbone's features")
    method = METHODS[WITHOUT_LABELS]
    values = {key: value for key, value in settings.values.items() if key in method.config_class.model_fields}
    values |= {"method": WITHOUT_LABELS, "variant": "official"}
    for section, changes in method.presets.get("", {}).items():
        values[section] = {**values.get(section, {}), **changes}
    return Settings(values)


def _build_vit(config: Config, session: Session, *, pretrained: bool) -> SeededViT:
    seeded = build_vit(METHODS[config.method](config), pretrained=pretrained)
    seeded.vit.set_compute_dtype(session.dtype)
    return seeded


def _decode(
    title: str, images: ImageSet, config: Config, resize: int, session: Session, skip_unreadable: bool
) -> DecodedImages:
    with progress_bar(session.console) as bar:
        task = bar.add_task(title, total=len(images), note="")
        cache = config.data.cache
        return DecodedImages(
            *load_images(
                images,
                resize,
                store=config.data.store,
                cache=None if cache is None else Path(cache),
                run_parent=session.directory.path.parent,
                skip_unreadable=skip_unreadable,
                on_progress=lambda done: bar.update(task, completed=done),
                group=session.group,
            )
        )


def _readable_problem(inputs: FitInputs, images: DecodedImages, session: Session) -> Problem:
    if images.faults:
        warn(f"{len(images.faults)} unreadable images were skipped; see {session.directory.skipped_file}")
    return inputs.problem.kept(images.kept)


def _view(store: Store, seeded: SeededViT, resize: int, session: Session) -> View | StreamedView:
    return view_of(store, *seeded.vit.preprocessing, resize=resize, device=session.device)


def _decode_test(
    inductive: Inductive, config: Config, seeded: SeededViT, resize: int, session: Session, skip_unreadable: bool
) -> TestImages:
    images = _decode("reading test images", inductive.test, config, resize, session, skip_unreadable)
    if images.faults:
        warn(f"{len(images.faults)} unreadable test images were skipped")
    return TestImages(_view(images.store, seeded, resize, session), [inductive.truth[i] for i in images.kept])


def _estimate(
    settings: Settings,
    inputs: FitInputs,
    problem: Problem,
    draft: Config,
    seeded: SeededViT,
    view: View | StreamedView,
    session: Session,
    is_continued: bool,
) -> ClassCount | None:
    """The number of classes in the embeddings of the pretrained backbone; None if it is known."""
    if not settings.estimates_classes or inputs.resume:
        return None
    problem.check(max(1, len(problem.classes)))
    vit = _build_vit(draft, session, pretrained=True).vit if is_continued else seeded.vit
    plain = frozen_vit(vit, draft.model.train_blocks).to(session.device).eval()
    features = embed_all(plain, view, len(problem.images), "embedding", session)
    count = session.group.on_first(lambda: count_from_features(features, problem.labels, draft, session.console))
    session.console.print(f"Estimated number of classes: {count.n_classes}", highlight=False)
    return count


def _known_count(inputs: FitInputs, session: Session) -> int | None:
    """A resumed run keeps the number of classes that it has estimated."""
    if not inputs.resume:
        return None
    return session.group.on_first(lambda: session.directory.config().n_classes)


def _fingerprint(store: Store, problem: Problem, previous: PreviousRun | None) -> str:
    """Of everything that a resumed run must find unchanged: pixels, names, labels."""
    digest = hashlib.sha256(store.fingerprint_data())
    digest.update("\0".join(problem.images.names).encode("utf-8", "surrogateescape"))
    digest.update(problem.labels.tobytes())
    if problem.inductive is not None:
        digest.update(problem.inductive.validation.tobytes())
    if previous is not None:
        digest.update(previous.digest)
    return digest.hexdigest()


def _info(inputs: FitInputs, problem: Problem, config: Config, resize: int, fingerprint: str) -> RunInfo:
    root, previous = problem.images.root, inputs.previous
    return RunInfo(
        status="running",
        root=None if root is None else str(root.absolute()),
        folder=problem.images.folder(),
        n_images=len(problem.images),
        n_labelled=int((problem.labels >= 0).sum()),
        known_classes=problem.classes,
        resize=resize,
        n_classes=config.n_classes,
        n_classes_estimated=config.n_classes_estimated,
        started_from=None if previous is None else str(previous.path.absolute()),
        launch=distributed.launch(),
        fingerprint=fingerprint,
    )


def _begin_directory(
    inputs: FitInputs, images: DecodedImages, config: Config, info: RunInfo, count: ClassCount | None, session: Session
) -> None:
    """Write what a new run begins with, or check that a resumed run is the same."""
    directory = session.directory
    if inputs.resume:
        _check_same_run(config, info, session)
        if info.launch is not None:
            directory.update_info(launch=info.launch)
        return
    directory.clear()
    files.write_text(directory.config_file, config.to_yaml())
    if count is not None:
        write_class_count(directory.path, count)
    if images.faults:
        skipped = sorted(set(range(len(inputs.problem.images))) - set(images.kept))
        rows = [(name, reason, position) for (name, reason), position in zip(images.faults, skipped, strict=True)]
        files.write_csv(directory.skipped_file, ["path", "reason", "position"], rows)
    info.write(directory.info_file)


def _check_same_run(config: Config, info: RunInfo, session: Session) -> None:
    directory = session.directory
    if directory.info().fingerprint != info.fingerprint:
        raise RunError(f"the run in {directory.path} has other images or labels; give the same ones to resume")
    then, now = flatten(directory.config().model_dump()), flatten(config.model_dump())
    changed = sorted(key for key in then if then[key] != now.get(key))
    if changed:
        raise RunError(
            f"the run in {directory.path} has {changed[0]}={then[changed[0]]}; give the same settings to resume, "
            "or --overwrite to start again"
        )


def _held_out(
    problem: Problem, config: Config, previous: PreviousRun | None, method: Method[Any], is_continued: bool
) -> np.ndarray:
    """Labels held out from training to select an epoch (-1 elsewhere)."""
    nothing = np.full(len(problem.labels), -1)
    if problem.inductive is not None:
        return np.where(problem.inductive.validation, problem.labels, -1)
    if config.selection.by != "validation" or not problem.classes:
        return nothing
    allowed = None if previous is None else previous.unseen_label_mask(problem.images.names)
    seed = derive_seed(config.seed, "validation")
    mask = hold_out(problem.labels, config.data.validation_fraction, seed, allowed)
    if not mask.any() and trained_stages(method, only_last=is_continued):
        warn("no label can be held out to select an epoch, so the last epoch is kept")
    return np.where(mask, problem.labels, -1)
