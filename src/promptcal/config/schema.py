"""Every setting of a run: typed, defaulted as in the paper, unknown keys refused, YAML in and out.

`variant` chooses between what produced the published numbers (`official`), what the text says (`paper`) and what did
better than the published values where we measured it (`recommended`, docs/results.md). It only fills in settings, each
of which can be set on its own: `presets/variants` has them.
"""

import difflib
import reprlib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from promptcal.errors import ConfigError
from promptcal.runtime.safe_yaml import read_yaml

_PRESETS = resources.files("promptcal.config") / "presets"
LEAST_TEMPERATURE = 1e-6  # cosines divided by less would leave float32's range on the way back


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("input should not be yes or no")
        return value


class ModelConfig(_Section):
    """Backbone, prompts and heads."""

    backbone: str = Field("vit_base_patch16_224.dino", description="timm name of a ViT")
    weights: str | None = Field(None, description="local weight file; none: from the hub")
    pretrained: bool = Field(True, description="no: random weights, to see what the pretraining is worth")
    image_size: int | None = Field(None, ge=8, description="pixels; none: the backbone's own")
    prompts: int = Field(5, ge=0)
    supervised_prompts: int = Field(2, ge=0)
    train_blocks: int = Field(1, ge=0)
    head_hidden: int = Field(2048, ge=1)
    head_bottleneck: int = Field(256, ge=1)
    head_prototypes: int = Field(65536, ge=1)

    @model_validator(mode="after")
    def _supervised_exist(self) -> "ModelConfig":
        if self.prompts and self.supervised_prompts > self.prompts:
            raise ValueError(f"supervised_prompts ({self.supervised_prompts}) exceeds prompts ({self.prompts})")
        return self

    @model_validator(mode="after")
    def _weights_are_pretrained(self) -> "ModelConfig":
        if self.weights is not None and not self.pretrained:
            raise ValueError("weights are given, so pretrained cannot be no; leave one of them out")
        return self


class DataConfig(_Section):
    """How images become batches."""

    resize: int | None = Field(None, ge=8, description="shorter side in the store; none: image_size * 256/224")
    store: Literal["auto", "memory", "mapped", "stream"] = Field(
        "auto",
        description="decoded images in memory, in a mapped file beside the run, or decoded anew each time by worker "
        "processes; auto: memory, or mapped if they would fill half of it",
    )
    cache: str | None = Field(None, description="folder to keep decoded images in for the next run")
    batch_size: int = Field(128, ge=2, description="images a batch, two views each")
    zoom: float = Field(
        1.0,
        gt=0,
        le=1,
        description="least share of a crop's area that a view to train on shows, enlarged; 1: plain crops",
    )
    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="share of each class's labels kept back to select a checkpoint by"
    )


Tokens = Literal["both", "cls", "prompt", "none"]


def has_term(token: str, tokens: Tokens) -> bool:
    """Whether a term set to be on ``tokens`` is on this one."""
    return tokens in ("both", token)


class LossConfig(_Section):
    """Weights and temperatures."""

    alpha: float = Field(0.35, ge=0, le=1, description="weight of the supervised term")
    beta: float = Field(0.6, ge=0, le=1, description="weight of CAL against the self-supervised term")
    gamma: float = Field(0.35, ge=0, description="weight of everything on [P]")
    self_temperature: float = Field(1.0, ge=LEAST_TEMPERATURE)
    supervised_temperature: float = Field(0.07, ge=LEAST_TEMPERATURE)
    affinity_temperature: float = Field(0.07, ge=LEAST_TEMPERATURE)


class OptimConfig(_Section):
    """SGD with a cosine schedule by epoch, in each stage anew."""

    lr: float = Field(0.1, gt=0)
    min_lr: float = Field(1e-4, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-5, ge=0)


class WarmupConfig(_Section):
    """Stage 1."""

    epochs: int = Field(200, ge=0)
    semicl: Literal["both", "cls"] = Field("both", description="tokens with the semi-supervised loss")
    distillation: str | None = Field(
        None, description="folder of extra images on which the class token is held to the frozen backbone's at first"
    )
    distillation_weight: float = Field(0.5, ge=0)
    distillation_epochs: int = Field(5, ge=1)


class AffinityConfig(_Section):
    """Stage 2: its terms, its graph, its memory and its teacher."""

    epochs: int = Field(70, ge=0)
    semicl: Tokens = Field("both", description="tokens with the semi-supervised loss")
    cal: Tokens = Field("both", description="tokens with the contrastive affinity loss")
    mining: Literal["graph", "knn", "ranking"] = Field(
        "graph",
        description="pseudo positives: by the affinity graph, the k nearest, or those of the same largest features",
    )
    ranking_top: int = Field(5, ge=1, description="how many largest features must agree, for mining=ranking")
    consensus: bool = Field(True, description="consensus graph; no: the plain graph of the k nearest")
    label_prior: bool = Field(True, description="SemiPriori: labels correct what was mined")
    k: int | None = Field(None, ge=1, description="neighbours; none: memory / (4 * classes)")
    quantile: float = Field(0.5, ge=0, le=1, description="0.5 for generic, 0.8 for fine-grained images")
    threshold: Literal["global", "row", "class-share", "mean-share"] = Field(
        "global",
        description="where affinities become positives: at a quantile of all of them (as published), at one of each "
        "query's own, or so that each query (or, by mean-share, a query on average) has as many as class_share says",
    )
    class_share: float = Field(
        0.5, gt=0, le=1, description="positives of a query, as a share of an even class's nodes in the graph"
    )
    memory: int = Field(4096, ge=1)
    negatives: int = Field(1024, ge=0)
    diffusion_steps: int = Field(1, ge=0, description="affinity propagation; 0: none")
    teacher_momentum: float = Field(0.999, ge=0, le=1)
    classifier: float = Field(
        0.0,
        ge=0,
        description="weight of a classifier beside the graph, as SimGCD's (settings: simgcd), which starts at the "
        "clusters of stage 1; 0: none",
    )
    keep: Literal["student", "teacher"] = Field("student", description="whose weights the stage ends with")

    @model_validator(mode="after")
    def _something_to_learn(self) -> "AffinityConfig":
        if self.epochs and self.semicl == self.cal == "none":
            raise ValueError("semicl and cal are both none, which leaves nothing to learn; set epochs to 0 instead")
        if self.mining == "graph" and not self.consensus and not self.diffusion_steps:
            raise ValueError(
                "without consensus and diffusion all edges weigh the same and no threshold parts them; "
                "choose mining=knn for the plain nearest neighbours"
            )
        return self


class ClusteringConfig(_Section):
    """Semi-supervised k-means."""

    n_init: int = Field(100, ge=1)
    max_iter: int = Field(200, ge=1)
    tol: float = Field(1e-4, ge=0)


class SelectionConfig(_Section):
    """Which epoch's weights a stage keeps.

    `validation`: by labels kept back from training (and, in stage 2, the silhouette of what is predicted new).
    `last`: the last epoch. `oracle`: as the published release does, on the scored images with their true
    membership; needs the truth and is not an honest protocol.
    """

    by: Literal["validation", "last", "oracle"] = "validation"
    every: int = Field(1, ge=1, description="epochs between looks")
    n_init: int = Field(10, ge=1, description="k-means starts at each look")
    max_images: int = Field(10_000, ge=2, description="images clustered at each look")


class _OneStageConfig(_Section):
    epochs: int | None = Field(None, ge=0, description="none: as many as warm-up and affinity learning together")


class GCDConfig(_OneStageConfig):
    """Method gcd; its loss is that of the warm-up."""


class SimGCDConfig(_OneStageConfig):
    """Method simgcd; weight and temperatures of its contrastive terms are those of `loss`."""

    student_temperature: float = Field(0.1, ge=LEAST_TEMPERATURE)
    teacher_temperature_start: float = Field(0.07, ge=LEAST_TEMPERATURE)
    teacher_temperature: float = Field(0.04, ge=LEAST_TEMPERATURE)
    teacher_epochs: int = Field(30, ge=0, description="epochs from the one to the other")
    entropy_weight: float = Field(2.0, ge=0)


class ORCAConfig(_OneStageConfig):
    """Method orca."""

    scale: float = Field(10.0, gt=0, description="of the cosines")
    margin_weight: float = Field(1.0, ge=0)
    max_margin: float = Field(0.5, ge=0)
    pair_weight: float = Field(1.0, ge=0)
    entropy_weight: float = Field(1.0, ge=0)


class UNOConfig(_OneStageConfig):
    """Method uno."""

    temperature: float = Field(0.1, ge=LEAST_TEMPERATURE)
    epsilon: float = Field(0.05, ge=LEAST_TEMPERATURE, description="smoothness of the assignments")
    iterations: int = Field(3, ge=1, description="of Sinkhorn-Knopp")
    heads: int = Field(4, ge=1)
    overclustering: int = Field(3, ge=1, description="clusters of an over-clustering head for each new category")


class RankStatsConfig(_OneStageConfig):
    """Method rankstats."""

    top: int = Field(5, ge=1, description="dimensions that must be the same")
    consistency: float = Field(5.0, ge=0)
    ramp_epochs: float = Field(50.0, ge=0, description="over which the consistency rises")


class EstimationConfig(_Section):
    """The number of classes, where it is to be estimated (`n_classes: auto`)."""

    max_classes: int | None = Field(None, ge=2, description="none: a tenth as many as images, at most 1,000")
    n_init: int = Field(10, ge=1, description="k-means starts for each number tried")


class SwitchConfig(_Section):
    """Where the published release and the paper's text differ."""

    prompt_pooling: Literal["mean", "mean-of-normalised"] = "mean"
    prompt_head: Literal["new", "from-warmup"] = Field("new", description="[P] head at the start of stage 2")
    own_positive: Literal["same-view", "other-view"] = Field("same-view", description="teacher view, class token")
    keys: Literal["memory", "memory-and-batch"] = "memory"
    negatives: Literal["budget-minus-positives", "whole-budget"] = "budget-minus-positives"
    threshold_diagonal: bool = True
    beta_ramp_epochs: float = Field(2.0, ge=0)


MethodName = Literal["promptcal", "promptcal-warmup", "gcd", "simgcd", "orca", "uno", "rankstats", "kmeans"]
VariantName = Literal["official", "paper", "recommended"]
_VARIANTS = get_args(VariantName)


class Config(_Section):
    """A whole run."""

    n_classes: int = Field(ge=1, description="known and new categories together; auto: estimated when loaded")
    n_classes_estimated: bool = Field(False, description="whether that is an estimate")
    seed: int = Field(0, ge=0)
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="of the network's matrix products; losses, norms and the affinity graph stay in fp32 (TF32 on a "
        "GPU beside bf16). auto: bf16 on GPUs made for it, else fp32",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto", description="compile the network; auto: on CUDA, for runs of 2,000 steps or more"
    )
    deterministic: bool = Field(
        False,
        description="only algorithms that repeat themselves bit by bit, which on a GPU costs speed; a CPU's do anyway",
    )
    method: MethodName = "promptcal"
    variant: VariantName = "official"
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    data: DataConfig = Field(default_factory=lambda: DataConfig())
    loss: LossConfig = Field(default_factory=lambda: LossConfig())
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig())
    warmup: WarmupConfig = Field(default_factory=lambda: WarmupConfig())
    affinity: AffinityConfig = Field(default_factory=lambda: AffinityConfig())
    clustering: ClusteringConfig = Field(default_factory=lambda: ClusteringConfig())
    selection: SelectionConfig = Field(default_factory=lambda: SelectionConfig())
    estimation: EstimationConfig = Field(default_factory=lambda: EstimationConfig())
    switches: SwitchConfig = Field(default_factory=lambda: SwitchConfig())
    gcd: GCDConfig = Field(default_factory=lambda: GCDConfig())
    simgcd: SimGCDConfig = Field(default_factory=lambda: SimGCDConfig())
    orca: ORCAConfig = Field(default_factory=lambda: ORCAConfig())
    uno: UNOConfig = Field(default_factory=lambda: UNOConfig())
    rankstats: RankStatsConfig = Field(default_factory=lambda: RankStatsConfig())
    tensorboard: bool = True

    @model_validator(mode="before")
    @classmethod
    def _fill_from_variant(cls, values: Any) -> Any:
        filled = variant_preset(values.get("variant")) if isinstance(values, dict) else {}
        if not filled:
            return values
        given = {k: v.model_dump(exclude_unset=True) if isinstance(v, BaseModel) else v for k, v in values.items()}
        _merge(filled, given)
        return filled

    @model_validator(mode="after")
    def _recommended_is_of_promptcal(self) -> "Config":
        if self.variant == "recommended" and not self.method.startswith("promptcal"):
            raise ValueError(f"variant=recommended is of the method promptcal; set variant=official for {self.method}")
        return self

    @model_validator(mode="after")
    def _class_token_where_it_is_alone(self) -> "Config":
        affinity, supervised = self.affinity, self.model.prompts and self.model.supervised_prompts
        if affinity.epochs and not supervised and {affinity.semicl, affinity.cal} <= {"prompt", "none"}:
            raise ValueError("affinity.semicl and affinity.cal are only on [P], but no prompt is supervised")
        return self

    @model_validator(mode="after")
    def _frozen_features_have_no_prompts(self) -> "Config":
        if self.method == "kmeans" and self.model.prompts:
            raise ValueError("model.prompts must be 0 for the method kmeans, which would not train them")
        return self

    @property
    def neighbours(self) -> int:
        """K, or M / (4 C) where it is not set."""
        return self.affinity.k or max(1, self.affinity.memory // (4 * self.n_classes))

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(), sort_keys=False)


def presets() -> list[str]:
    folder = _PRESETS
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def method_preset(name: Any, preset: str | None = None) -> dict[str, Any]:
    """What a method sets differently from PromptCAL, on top of a preset; nothing for a name validation will refuse."""
    found: dict[str, Any] = {}
    folder = _PRESETS / "methods"
    if name in get_args(MethodName):
        for file in (folder / f"{name}.yaml", folder / str(preset) / f"{name}.yaml"):
            if file.is_file():
                _merge(found, _parse_yaml(file.read_text("utf-8"), f"the preset of {name}"))
    return found


def variant_preset(name: Any) -> dict[str, Any]:
    """What a variant sets; nothing for the official one, or for a name validation will refuse."""
    if name not in _VARIANTS or name == "official":
        return {}
    file = _PRESETS / "variants" / f"{name}.yaml"
    return _parse_yaml(file.read_text("utf-8"), f"the variant {name}")


def load_config(
    *,
    preset: str | None = None,
    file: str | PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    values: Mapping[str, Any] | None = None,
    estimate: Callable[[Config], int] | None = None,
) -> Config:
    """Defaults, a preset, the variant's and the method's own, a YAML file, `values`, `a.b=value` overrides: the later
    one wins.

    Where the number of classes is "auto", ``estimate`` is asked for it, given all the other settings.
    """
    merged: dict[str, Any] = {}
    if preset is not None:
        if preset not in presets():
            raise ConfigError(f"there is no preset {preset!r}; choose one of {', '.join(presets())}")
        _merge(
            merged,
            _parse_yaml((_PRESETS / f"{preset}.yaml").read_text("utf-8"), preset),
        )
    layers: list[Mapping[str, Any]] = []
    if file is not None:
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"the config file {path} does not exist; check the path")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"the config file {path} is not text; give a YAML file") from error
        layers.append(_parse_yaml(text, str(path)))
    layers += [values or {}, *map(_parse_override, overrides)]
    variant, method = (_chosen(key, [merged, *layers]) for key in ("variant", "method"))
    beneath = {name: _laid(merged, variant_preset(name), method_preset(method, preset)) for name in (None, *_VARIANTS)}
    layers = [_as_of_variant(layer, variant, beneath) for layer in layers]
    merged = beneath[variant if variant in _VARIANTS else None]
    for layer in layers:
        if "n_classes" in layer:
            merged.pop("n_classes_estimated", None)
        _merge(merged, layer)
    if merged.get("n_classes") == "auto":
        if estimate is None:
            raise ConfigError("n_classes=auto needs images to estimate it by; use it with fit, or give a number")
        merged["n_classes"] = estimate(validate({**merged, "n_classes": 1}))
        merged["n_classes_estimated"] = True
    return validate(merged)


def validate(values: Mapping[str, Any]) -> Config:
    """A `Config` of plain values, or a `ConfigError` that says which key is wrong and how."""
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(e) for e in error.errors())) from error


def _parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        parsed = read_yaml(text)
    except ValueError as error:  # also of a date such as 2024-99-99
        raise ConfigError(f"{source} is not valid YAML ({error}); mend it") from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise ConfigError(f"{source} must be a YAML mapping of settings, not a {type(parsed).__name__}")
    return parsed


def _parse_override(override: str) -> dict[str, Any]:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes key=value, such as affinity.k=10, not {override!r}")
    nested: Any = _parse_yaml(f"value: {value}", override).get("value")
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    return nested


def _chosen(key: str, layers: Iterable[Mapping[str, Any]]) -> Any:
    """What the last of the sources that speak of it says."""
    return next((layer[key] for layer in reversed([*layers]) if key in layer), None)


def _as_of_variant(
    layer: Mapping[str, Any], variant: Any, beneath: Mapping[str | None, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """A source that speaks of another variant than the one chosen in the end, as a saved configuration does.

    Of what either of the two sets it keeps only what differs from its own, which somebody must have asked for.
    """
    own = layer.get("variant")
    if own == variant or own not in _VARIANTS or variant not in _VARIANTS:
        return layer
    kept = dict(layer)
    for section, settings in _laid(variant_preset(own), variant_preset(variant)).items():
        if isinstance(layer.get(section), Mapping):  # else validation will refuse it
            usual = {**_default(section), **beneath[own].get(section, {})}
            kept[section] = {k: v for k, v in layer[section].items() if k not in settings or v != usual[k]}
    return kept


def _default(section: str) -> dict[str, Any]:
    return getattr(Config(n_classes=1), section).model_dump()


def _laid(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """One over the other."""
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer)
    return merged


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Settings lie one section deep, so sections are merged and everything else is replaced."""
    for key, value in new.items():
        before = into.get(key)
        into[key] = {**before, **value} if isinstance(value, Mapping) and isinstance(before, Mapping) else value


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if not key and error["type"] == "value_error":  # of several settings together
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, _all_keys(Config), n=1, cutoff=0.5)
        return f"there is no setting {key!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    if error["type"] == "missing":
        return f"the setting {key!r} is missing; give --{key.replace('_', '-')} or set it in the config"
    given = "" if isinstance(error["input"], dict) else f", not {reprlib.repr(error['input'])}"
    message = error["msg"].removeprefix("Value error, ")
    return f"the setting {key!r} is wrong: {message[0].lower()}{message[1:]}{given}"


def _all_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _all_keys(field.annotation, f"{prefix}{name}.")
    return keys
