"""What a request gives: images, labels, settings and earlier runs, read and checked before anything is computed."""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from promptcal.config import AUTO, Config, Layers, validate
from promptcal.config.layers import merge_into
from promptcal.data import ImageSet, parse_labels, read_labels
from promptcal.data.labels import spelled_differently
from promptcal.errors import ConfigError, DataError, RunError, shorten
from promptcal.methods import METHODS, WITHOUT_TRAINING, resolve
from promptcal.methods.base import trained_stages
from promptcal.pipeline.fit_defaults import fit_defaults
from promptcal.pipeline.previous_run import PreviousRun
from promptcal.pipeline.problem import Inductive, Problem, TestSet
from promptcal.pipeline.published import unmet_conditions
from promptcal.pipeline.repeated_options import is_path, repeated_words
from promptcal.pipeline.request import ClusterRequest, EmbedRequest, EstimateRequest, FitRequest, PathOrText
from promptcal.pipeline.sampled_inputs import sampled_images, with_default_sample, with_truth_of
from promptcal.pipeline.session import warn
from promptcal.pipeline.shared_stage import SharedStage
from promptcal.run.directory import RunDirectory
from promptcal.runtime import distributed
from promptcal.runtime.arguments import check_argument
from promptcal.runtime.files import is_below

_MOST_MINUTES = 1_000_000  # two years


@dataclass(frozen=True)
class Settings:
    """Settings before the number of classes is known: ``n_classes`` may be "auto" in ``values``."""

    values: dict[str, Any]

    @property
    def estimates_classes(self) -> bool:
        return self.values.get("n_classes") == AUTO

    def with_values(self, **sections: dict[str, Any]) -> "Settings":
        """The settings with other values in some sections."""
        return Settings({**self.values, **{name: {**self.values[name], **new} for name, new in sections.items()}})

    def draft(self, n_known: int) -> Config:
        """The config before the number of classes is known; everything else is final."""
        return self.config(max(1, n_known))

    def config(self, n_classes: int | None = None) -> Config:
        """The config, with an estimated number of classes if it is to be estimated."""
        values = self.values
        if self.estimates_classes and n_classes is not None:
            values = {**values, "n_classes": n_classes, "n_classes_estimated": True}
        return validate(values, METHODS[values.get("method", Config.model_fields["method"].default)])


@dataclass(frozen=True)
class FitInputs:
    """All inputs of a fit. ``resume``: there is a run to resume.

    ``data_difference``: how the images differ from the benchmark's published ones. ``unmet_conditions``: what the
    published protocol has and this run does not; None for the default protocol.
    ``command``: the words of a command line that name the same images again; empty if there are none. ``released``: the
    names of images whose label is empty in the label file; the user marked them as wrong. ``keep_confirmed``: see the
    request.
    """

    problem: Problem
    settings: Settings
    previous: PreviousRun | None
    shared: SharedStage | None
    resume: bool
    skip_unreadable: bool
    benchmark: str | None
    data_difference: str | None
    unmet_conditions: list[str] | None
    command: list[str]
    released: frozenset[str]
    keep_confirmed: bool

    def resumed_n_classes(self, directory: RunDirectory) -> int | None:
        """A resumed run keeps the number of classes that it has estimated."""
        return distributed.group().on_first(lambda: directory.config().n_classes) if self.resume else None


def read_inputs(request: FitRequest, directory: RunDirectory, console: Console) -> FitInputs:
    """Read and check what the request names; nothing is written."""
    request = with_default_sample(request)
    group, given = distributed.group(), request
    check_argument("inductive", request.inductive, Inductive | None)
    check_argument("read_test", request.read_test, Callable | None)
    if request.keep not in (None, "better", "trained"):
        raise ConfigError(f"--keep is better or trained, not {request.keep}")
    if request.stop_after is not None and not 0 < request.stop_after <= _MOST_MINUTES:
        raise ConfigError(
            f"--stop-after takes minutes above 0, at most {_MOST_MINUTES:,}, not {shorten(request.stop_after)}"
        )
    resume = group.on_first(lambda: directory.check_free(resume=request.resume, overwrite=request.overwrite))
    previous = group.on_first(lambda: _previous_run(request, directory, resume))
    if request.sample is None:
        images = ImageSet.of(request.images)
    else:
        seed = group.on_first(lambda: Settings(_values(request, previous)).draft(1).seed)  # checked before it is read
        before = None if previous is None else previous.assignments
        images = group.on_first(lambda: sampled_images(request, before, seed, console))
        request = with_truth_of(request, images, console)
    check_output_is_outside(images, directory.path)
    if request.generic_images is not None:
        ImageSet.of(request.generic_images)  # so that a wrong folder is found before anything is computed
    problem, released = read_problem(request, images, previous, console, inductive=request.inductive)
    settings = group.on_first(
        lambda: with_category_count(_values(request, previous), request, previous, problem, console)
    )
    draft = settings.draft(len(problem.classes))
    if previous is not None:
        previous.check(draft, directory.path)
    if not settings.estimates_classes:
        problem.check(draft.n_classes)
    if draft.selection.by == "oracle":
        if problem.inductive is None:
            problem = replace(problem, oracle=_test_set(request))
        elif (n_images := int(problem.inductive.validation.sum())) < draft.n_classes:
            raise DataError(
                f"selection.by=oracle cannot cluster {n_images} validation images (a tenth of each class) into "
                f"{draft.n_classes} classes; give more images, or add --set selection.by=last"
            )
    if previous is not None and not resume and _trains(previous, draft):
        _mention_naming(previous, request, problem, released, console)
    shared = group.on_first(lambda: _shared_stage(request, draft, directory))
    unmet = unmet_conditions(draft, request.preset) if draft.protocol == "published" else None
    if unmet is not None and request.data_difference is not None:
        unmet = [*unmet, request.data_difference]
    command = repeated_words(given, draft)
    return FitInputs(
        problem=problem,
        settings=settings,
        previous=previous,
        shared=shared,
        resume=resume,
        skip_unreadable=request.skip_unreadable,
        benchmark=request.benchmark,
        data_difference=request.data_difference,
        unmet_conditions=unmet,
        command=command,
        released=released,
        keep_confirmed=request.keep_confirmed,
    )


def _trains(previous: PreviousRun, config: Config) -> bool:
    return bool(trained_stages(METHODS[config.method](config), only_last=previous.can_initialize(config)))


def _mention_naming(
    previous: PreviousRun, request: FitRequest, problem: Problem, released: frozenset[str], console: Console
) -> None:
    """Say that labels which only name or confirm categories need no training."""
    given = problem.label_names(), released, problem.images.names
    if request.labels is None or previous.has_labels(*given) or not previous.confirms(*given):
        return
    words = ["promptcal", "name", str(previous.path), str(request.labels)]
    command = shlex.join(words) if is_path(request.labels) else "promptcal.name"
    console.print(
        f"The labels only name or confirm categories of {previous.path}, and no image changes its category: "
        f"`{command}` gives the same names without training",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def read_problem(
    request: FitRequest | ClusterRequest,
    images: ImageSet,
    previous: PreviousRun | None,
    console: Console,
    *,
    inductive: Inductive | None = None,
) -> tuple[Problem, frozenset[str]]:
    """The labels and the truth of the images, and the names of those whose label is empty in the label file."""
    group = distributed.group()
    labels = parse_labels(request.labels, images, console)
    names = labels.names if previous is None else previous.merge_labels(labels.names, labels.removed, images.names)
    group.check_same((images.names, names), "images or labels")
    released = frozenset(name for name, empty in zip(images.names, labels.removed, strict=True) if empty)
    if previous is not None and request.labels is not None and previous.has_labels(names, released, images.names):
        warn(
            f"the labels bring nothing new: {previous.path} has them all, perhaps because `promptcal name` applied "
            "them; otherwise check that this is the file you downloaded last"
        )
    if previous is None and request.keep_confirmed:
        raise ConfigError("--keep-confirmed keeps the categories of a previous run; give that run with --from")
    truth = None if request.truth is None else read_labels(request.truth, images, console)
    problem = Problem.of(images, names, truth, inductive)
    known = dict.fromkeys([*(previous.run.names if previous else []), *problem.classes])
    for first, second, *_ in spelled_differently(known)[:1]:
        warn(
            f"the labels {first!r} and {second!r} differ only in letter case and are two categories; if they are "
            "one, write them in the same way"
        )
    return problem, released


def _test_set(request: FitRequest) -> TestSet:
    if request.read_test is None:
        raise ConfigError(
            "selection.by=oracle selects on the test images of a benchmark, and there are none here; use `promptcal "
            "benchmark`, or add --set selection.by=validation (or last)"
        )
    try:
        return request.read_test()
    except DataError as error:
        raise DataError(f"selection.by=oracle needs test images: {error}; or add --set selection.by=last") from error


def check_output_is_outside(images: ImageSet, output: Path) -> None:
    if images.root is not None and is_below(output, images.root):
        raise RunError(
            f"the output {output} lies in the image folder, where its pictures would be taken for images; "
            "choose another place"
        )


def _previous_run(request: FitRequest, directory: RunDirectory, resume: bool) -> PreviousRun | None:
    if request.start_from is None:
        start = directory.info().started_from if resume else None
        if start is not None:
            raise RunError(f"the run in {directory.path} continues {start}; add --from {start} to resume it")
        return None
    if request.config is not None or request.preset is not None:
        raise ConfigError(f"--from takes its settings from {request.start_from}; change single ones with --set")
    return PreviousRun(request.start_from)


def backbone_config(request: EstimateRequest | EmbedRequest, **changes: Any) -> Config:
    """The config of a request that embeds images without a fit; its number of classes has no meaning."""
    names = {option.name for option in fields(FitRequest)} & {option.name for option in fields(request)}
    options = {name: getattr(request, name) for name in names}
    return resolve(settings_layers(FitRequest(**{**options, "images": None, "output": "", "n_classes": 1, **changes})))


def with_category_count(
    values: dict[str, Any],
    request: FitRequest | ClusterRequest,
    previous: PreviousRun | None,
    problem: Problem,
    console: Console,
) -> Settings:
    """The settings, with the number of categories that the labels leave of a previous run's, unless it is given."""
    overrides = (setting.replace(" ", "") for setting in request.overrides)
    is_given = request.n_classes is not None or any(setting.startswith("n_classes=") for setting in overrides)
    if previous is not None and not is_given:
        values = {**values, "n_classes": _n_categories(values["n_classes"], previous, problem, console)}
    return Settings(values)


def _values(request: FitRequest, previous: PreviousRun | None) -> dict[str, Any]:
    """All settings; those of a previous run have its number of categories."""
    base: dict[str, Any] = {}
    if previous is not None:
        base = previous.settings(settings_layers(request, {"method": previous.run.method.name}).method)
    layers = settings_layers(request, base)
    if not METHODS[layers.method].takes_images:
        raise ConfigError(f"the method {layers.method} is for features, not for images; use `promptcal cluster`")
    if request.generic_images is not None and not METHODS[layers.method].uses_generic_images:
        raise ConfigError(f"the method {layers.method} uses no generic images; leave --generic-images out")
    return layers.merged(METHODS[layers.method])


def settings_layers(request: FitRequest, base: dict[str, Any] | None = None) -> Layers:
    """The sources of settings that a request names, on top of ``base`` and of the defaults of a fit."""
    values = _option_values(request)
    check_argument("config", request.config, PathOrText | Config | None)
    check_argument("preset", request.preset, str | Mapping | None)
    file, given = request.config, base or {}
    if isinstance(request.config, Config):
        file, given = None, _config_values(request.config, request.method)
    layers = Layers.of(preset=request.preset, file=file, values=values, overrides=request.overrides).on_top_of(given)
    keep = {"selection": {"keep": "better"}} if request.keep == "better" else {}
    if layers.is_published:  # the publications continue no run
        if request.benchmark is not None and request.start_from is None and keep:
            raise ConfigError("the published protocol keeps the result of training; leave --keep better out")
        return layers if request.start_from is None else layers.on_top_of(keep)
    defaults = (fit_defaults(layers) if request.benchmark is None and request.preset is None else {}) | keep
    if request.readout is not None:
        defaults["clustering"] = {"readout": request.readout}
    return layers.on_top_of(defaults)


def _config_values(config: Config, method: str | None) -> dict[str, Any]:
    """The values of a given config, for another method without those of its own method."""
    values = config.model_dump()
    if method not in (None, config.method):
        own = {"method", "variant"}
        values = {key: value for key, value in values.items() if key in Config.model_fields.keys() - own}
        merge_into(values, METHODS[method].presets.get("", {}))
    return values


def _option_values(request: FitRequest) -> dict[str, Any]:
    """The settings that the options of a request name."""
    compile = None if request.compile is None else "always" if request.compile else "never"
    if request.quick and request.method not in (None, WITHOUT_TRAINING):
        raise ConfigError(
            f"--quick trains nothing, so it cannot use the method {request.method}; leave one of them out"
        )
    named = {
        "n_classes": request.n_classes,
        "method": WITHOUT_TRAINING if request.quick else request.method,
        "seed": request.seed,
        "device": request.device,
        "precision": request.precision,
        "compile": compile,
        "deterministic": request.deterministic or None,
        "protocol": request.protocol,
    }
    values: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    if request.generic_images is not None:
        values["data"] = {"generic_images": str(request.generic_images)}
    if request.keep == "trained":
        values["selection"] = {"keep": "trained"}
    model = {"backbone": request.backbone, "weights": request.weights}
    values["model"] = {key: str(value) for key, value in model.items() if value is not None}
    return values


def _n_categories(n_classes: int, previous: PreviousRun, problem: Problem, console: Console) -> int:
    """``n_classes`` less the categories that the labels merge into others, plus the classes without a category."""
    merged, added = previous.merged_and_added(problem.label_names(), problem.images.names)
    if not merged and not added:
        return n_classes
    left = n_classes - len(merged) + len(added)
    reasons = [f"merge {', '.join(merged)} into other categories"] if merged else []
    reasons += [f"name {', '.join(added)}, whose images were in other categories"] if added else []
    console.print(
        f"The labels {' and '.join(reasons)}, so the number of categories is now {left} (--n-classes sets another "
        "number)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return left


def _shared_stage(request: FitRequest, config: Config, directory: RunDirectory) -> SharedStage | None:
    if request.warmup_from is None:
        return None
    if request.start_from is not None:
        raise ConfigError("--from continues a run's last stage and --warmup-from reuses its first; give one of them")
    method = METHODS[config.method](config)
    if method.first_stage_settings() is None:
        raise ConfigError(f"--warmup-from is for methods with two stages, which {config.method} does not have here")
    if os.path.realpath(request.warmup_from) == os.path.realpath(directory.path):
        raise RunError(f"{directory.path} cannot reuse its own first stage; give another --output")
    return SharedStage(request.warmup_from, next(iter(method.epochs())))
