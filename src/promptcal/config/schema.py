"""The settings that every run has: typed, with the paper's values as defaults; unknown keys are rejected.

A method adds sections of its own in a subclass of `Config` (`promptcal.methods`).
"""

from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

LEAST_TEMPERATURE = 1e-6  # a cosine divided by less can overflow float32
# Upper bounds: far above any useful value, and low enough that nothing overflows or fills the memory by itself.
MOST_EPOCHS = 100_000
MOST_STARTS = 100_000  # of k-means
MOST_CLASSES = 1_000_000
LARGEST_SIDE = 4096  # pixels, of stored images
LARGEST_WEIGHT = 10_000.0  # of a loss term, a learning rate or a temperature


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool_as_number_and_nul(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("input should not contain a NUL character")
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("input should not be yes or no")
        return value


class ModelConfig(Section):
    """Backbone, prompts and heads."""

    backbone: str = Field("vit_base_patch16_224.dino", description="timm name of a ViT")
    weights: str | None = Field(None, description="local weight file; none: from the hub")
    pretrained: bool = Field(True, description="whether to load pretrained weights; false: random weights")
    image_size: int | None = Field(
        None, ge=8, le=2048, description="side of the square input in pixels; none: the backbone's own"
    )
    prompts: int = Field(5, ge=0, le=1000, description="learnable tokens in each block; 0: the plain ViT")
    supervised_prompts: int = Field(
        2, ge=0, le=1000, description="prompts whose mean is the token [P], which has losses of its own; 0: none"
    )
    train_blocks: int = Field(
        1, ge=0, le=1000, description="blocks of the ViT that are trained, counted from the last one"
    )
    head_hidden: int = Field(2048, ge=1, le=65_536, description="width of the hidden layers of a projection head")
    head_bottleneck: int = Field(256, ge=1, le=16_384, description="width before the last layer of a projection head")
    head_prototypes: int = Field(65536, ge=1, le=4_194_304, description="outputs of a projection head")

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


class DataConfig(Section):
    """How images become batches."""

    resize: int | None = Field(
        None, ge=8, le=LARGEST_SIDE, description="shorter side in the store; none: image_size * 256/224"
    )
    store: Literal["auto", "memory", "mapped", "stream"] = Field(
        "auto",
        description="decoded images in memory, in a memory-mapped file beside the run, or decoded at every use by "
        "worker processes; auto: memory, or mapped if they need more than half of it",
    )
    cache: str | None = Field(None, description="folder to keep decoded images in for the next run")
    generic_images: str | None = Field(
        None,
        description="folder of generic images, such as ImageNet's, for methods that use them (PromptCAL distils the "
        "frozen backbone on them in the first epochs); none: no distillation",
    )
    batch_size: int = Field(128, ge=2, le=65_536, description="images in a batch; each has two views")
    sampling: Literal["balanced", "natural"] = Field(
        "balanced",
        description="balanced: drawn with replacement, about half of a batch labelled; natural: every image once an "
        "epoch, in random order",
    )
    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="share of each class's labels held out to select an epoch"
    )


class LossConfig(Section):
    """Weights and temperatures."""

    alpha: float = Field(0.35, ge=0, le=1, description="weight of the supervised term")
    beta: float = Field(0.6, ge=0, le=1, description="weight of CAL against the self-supervised term")
    gamma: float = Field(0.35, ge=0, le=LARGEST_WEIGHT, description="weight of all losses of the prompt token [P]")
    self_temperature: float = Field(
        1.0, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="temperature of the self-supervised contrastive loss"
    )
    supervised_temperature: float = Field(
        0.07, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="temperature of the supervised contrastive loss"
    )
    affinity_temperature: float = Field(
        0.07,
        ge=LEAST_TEMPERATURE,
        le=LARGEST_WEIGHT,
        description="temperature of the affinity loss, and of the confidences of k-means before calibration",
    )


class OptimConfig(Section):
    """SGD with a learning rate that changes by epoch and starts again in each stage."""

    epochs: int = Field(200, ge=0, le=MOST_EPOCHS, description="epochs of methods with one stage")
    lr: float = Field(0.1, gt=0, le=LARGEST_WEIGHT, description="learning rate")
    schedule: Literal["cosine", "steps"] = Field(
        "cosine", description="cosine: from lr down towards min_lr; steps: a tenth from each milestone on"
    )
    milestones: tuple[Annotated[int, Field(ge=1, le=MOST_EPOCHS)], ...] = Field(
        (140, 180), description="epochs of the steps, counted from the start of the stage"
    )
    warmup_epochs: int = Field(
        0, ge=0, le=MOST_EPOCHS, description="epochs at the start in which the rate rises from min_lr to lr"
    )
    min_lr: float = Field(
        1e-4,
        ge=0,
        le=LARGEST_WEIGHT,
        description="learning rate at the end of the cosine, and at the start of warmup_epochs",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(5e-5, ge=0, le=LARGEST_WEIGHT, description="weight decay of SGD")


class ClusteringConfig(Section):
    """Semi-supervised k-means, and the read-out that is trained from its starts."""

    readout: Literal["kmeans", "head"] = Field(
        "kmeans",
        description="of methods without a classifier. head: a linear classifier, trained on the embeddings from "
        "a few starts of k-means; kmeans: as in the paper",
    )
    prior: Literal["auto", "balanced", "estimated", "none"] = Field(
        "auto",
        description="sizes of the categories that readout=head expects: equal ones (balanced), those of k-means "
        "(estimated), or any (none). auto: balanced, but none if the classes differ much in their numbers of labels",
    )
    repeats: int = Field(1, ge=1, le=1000, description="seeds of k-means that a final score is averaged over")
    n_init: int = Field(
        100,
        ge=1,
        le=MOST_STARTS,
        description="starts of k-means; the one with the smallest inertia is kept. readout=head makes one start for "
        "each of its heads instead",
    )
    max_points_per_cluster: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="of more images than this for each category (and 10,000), k-means searches its starts on a part; "
        "none: on all of them",
    )
    max_iter: int = Field(200, ge=1, le=1_000_000, description="iterations of a start of k-means at most")
    tol: float = Field(
        1e-4,
        ge=0,
        le=LARGEST_WEIGHT,
        description="a start ends when its centroids move by less than this share of the features' variance",
    )


class SelectionConfig(Section):
    """Which epoch's weights a stage keeps.

    `validation`: the best on held-out labels (and by the silhouette of the images predicted as new, if the method uses
    it). `last`: the last epoch. `oracle`: the rule of the published release of PromptCAL. Test images of a benchmark
    are clustered without labels, and the epoch with the best accuracy on their known classes is kept (in stage 2 the
    mean of it and the silhouette of the new classes). It uses true classes, so its accuracies are too optimistic.
    """

    by: Literal["validation", "last", "oracle"] = Field(
        "validation", description="rule by which an epoch is kept; last: the last one; oracle: uses true classes"
    )
    validate_every: int = Field(1, ge=1, le=MOST_EPOCHS, description="epochs between validations")
    n_init: int = Field(10, ge=1, le=MOST_STARTS, description="k-means starts at each validation")
    max_images: int = Field(10_000, ge=2, le=1_000_000_000, description="images clustered at each validation")
    keep: Literal["better", "trained"] = Field(
        "trained",
        description="trained: the result of training; better: the first result, from before training, if held-out "
        "labels and the stability of the clusters prefer it (the default of `promptcal fit`). With --from, held-out "
        "labels decide alone, and the result of training must be right on more of them",
    )


class EstimationConfig(Section):
    """The number of classes, if it is to be estimated (`n_classes: auto`)."""

    max_classes: int | None = Field(
        None,
        ge=2,
        le=MOST_CLASSES,
        description="largest number to try; none: a tenth of the number of images, at most 1,000",
    )
    n_init: int = Field(10, ge=1, le=MOST_STARTS, description="k-means starts for each candidate of grid and published")
    search: Literal["calibrated", "grid", "published"] = Field(
        "calibrated",
        description="calibrated: several estimators, measured on known classes that are hidden, and an interval; grid: "
        "the accuracy of k-means on labelled images, on a coarse grid, then by Brent's search, and the silhouette "
        "decides among equals; published: Brent's search from the known classes to 1,000 (or max_classes), and the "
        "accuracy alone decides",
    )


class Config(Section):
    """A run. A method's own config class adds its sections."""

    n_classes: int = Field(ge=1, le=MOST_CLASSES, description="known and new categories together")
    n_classes_estimated: bool = Field(False, description="whether n_classes is an estimate")
    seed: int = Field(
        0, ge=0, lt=2**63, description="random seed; the same seed on the same machine gives the same run"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="number format of the network's matrix products; losses, norms and the affinity graph stay in "
        "fp32 (TF32 on a GPU with bf16). auto: bf16 on GPUs that support it and on CPUs with AVX-512 BF16, else fp32",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto", description="compile the network; auto: on CUDA, for runs of 2,000 steps or more"
    )
    deterministic: bool = Field(False, description="only deterministic algorithms, which are slower on a GPU")
    method: str = Field("promptcal", description="name of the method, as --method")
    variant: str = Field("official", description="a set of values that the method offers under this name")
    protocol: Literal["default", "published"] = Field(
        "default",
        description="published: all labels are trained on, and an epoch is kept by the rule of the method's paper",
    )
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    data: DataConfig = Field(default_factory=lambda: DataConfig())
    loss: LossConfig = Field(default_factory=lambda: LossConfig())
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig())
    clustering: ClusteringConfig = Field(default_factory=lambda: ClusteringConfig())
    selection: SelectionConfig = Field(default_factory=lambda: SelectionConfig())
    estimation: EstimationConfig = Field(default_factory=lambda: EstimationConfig())
    tensorboard: bool = Field(True, description="whether files for TensorBoard are written")

    def to_yaml(self) -> str:
        """As YAML with an explicit end marker, by which a truncated file is detected."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, explicit_end=True)
