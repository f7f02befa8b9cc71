"""Settings of PromptCAL: both stages, the affinity graph, and where the release and the paper's text differ."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from promptcal.config import Config, Section
from promptcal.config.schema import LARGEST_WEIGHT, MOST_EPOCHS
from promptcal.methods.parametric import ParametricSettings

TokenChoice = Literal["both", "cls", "prompt", "none"]


def applies_to(token: str, choice: TokenChoice) -> bool:
    """Whether a term with this choice of tokens is computed on ``token``."""
    return choice in ("both", token)


class WarmupSettings(Section):
    """Stage 1."""

    epochs: int = Field(200, ge=0, le=MOST_EPOCHS, description="epochs of stage 1")
    semicl: Literal["both", "cls"] = Field("both", description="tokens with the semi-supervised loss")


class AffinitySettings(Section):
    """Stage 2: its terms, affinity graph, memory and teacher."""

    epochs: int = Field(70, ge=0, le=MOST_EPOCHS, description="epochs of stage 2; 0: the result is that of stage 1")
    semicl: TokenChoice = Field("both", description="tokens with the semi-supervised loss")
    cal: TokenChoice = Field("both", description="tokens with the contrastive affinity loss")
    mining: Literal["graph", "knn", "ranking"] = Field(
        "graph",
        description="pseudo positives: by the affinity graph, the k nearest, or those with the same largest features",
    )
    ranking_top: int = Field(
        5, ge=1, le=100_000, description="with mining=ranking: how many of the largest features must be the same"
    )
    consensus: bool = Field(
        True, description="whether to use the consensus graph; false: the plain graph of the k nearest"
    )
    label_prior: bool = Field(True, description="SemiPriori: labels correct the mined pairs")
    k: int | None = Field(
        None, ge=1, le=1_000_000, description="neighbours of a node of the graph; none: memory / (4 * classes)"
    )
    quantile: float = Field(
        0.5,
        ge=0,
        le=1,
        description="quantile of the large affinities above which pairs are positive; 0.8 for fine-grained images",
    )
    memory: int = Field(
        4096, ge=1, le=1_000_000, description="embeddings of the teacher that are kept as nodes of the graph"
    )
    negatives: int = Field(
        1024,
        ge=0,
        le=1_000_000,
        description="memory entries that are drawn as negatives of a query, less its positives",
    )
    diffusion_steps: int = Field(1, ge=0, le=1000, description="steps of affinity propagation; 0: none")
    teacher_momentum: float = Field(
        0.999, ge=0, le=1, description="share of the teacher's weights that stays at each step"
    )
    classifier: float = Field(
        0.0,
        ge=0,
        le=LARGEST_WEIGHT,
        description="weight of a classifier beside the graph, as SimGCD's (settings: simgcd), which starts at the "
        "clusters of stage 1; 0: none",
    )

    @model_validator(mode="after")
    def _has_a_loss(self) -> "AffinitySettings":
        if self.epochs and self.semicl == self.cal == "none":
            raise ValueError("semicl and cal are both none, so there is no loss; set epochs to 0 instead")
        if self.mining == "graph" and not self.consensus and not self.diffusion_steps:
            raise ValueError(
                "without consensus and diffusion all edges have the same weight, so no threshold separates them; "
                "choose mining=knn for the plain nearest neighbours"
            )
        return self


@dataclass(frozen=True)
class Recipe:
    """Details in which the published release and the paper's text differ."""

    prompt_pooling: str = "mean"  # of the supervised prompts, or "mean-of-normalised"
    reset_prompt_head: bool = True  # stage 2 starts with a new [P] head
    own_view_positive: bool = True  # the class token's own positive: the teacher's same view, or else the other view
    batch_keys: bool = False  # the batch provides keys beside the memory
    subtract_positives: bool = True  # positives count towards the budget of negatives
    threshold_diagonal: bool = True  # the graph's diagonal counts for the threshold
    beta_ramp_epochs: float = 2.0  # epochs over which the CAL weight rises


RELEASE = Recipe()
PAPER = Recipe(
    prompt_pooling="mean-of-normalised",
    reset_prompt_head=False,
    own_view_positive=False,
    batch_keys=True,
    subtract_positives=False,
    threshold_diagonal=False,
    beta_ramp_epochs=0.0,
)

# Values chosen on the scored images of CIFAR-100 and CUB with a small backbone (results/details.md). Two trained
# blocks help weak backbones; the lower learning rate suits few labels; at the published quantile half of the positives
# of new classes are wrong at first; K by memory and classes, because a small K leaves queries without a positive. All
# measurements of these values validated every fifth epoch; on a GPU, a validation takes as long as an epoch.
RECOMMENDED: dict[str, Any] = {
    "model": {"train_blocks": 2},
    "loss": {"self_temperature": 0.5},
    "optim": {"lr": 0.01},
    "affinity": {"k": None, "quantile": 0.8},
    "selection": {"validate_every": 5},
}
VARIANTS: dict[str, dict[str, Any]] = {"official": {}, "paper": {}, "recommended": RECOMMENDED}


class PromptCALConfig(Config):
    """`variant` selects the release's recipe (official), the paper's text (paper), or recommended values."""

    warmup: WarmupSettings = Field(default_factory=lambda: WarmupSettings())
    affinity: AffinitySettings = Field(default_factory=lambda: AffinitySettings())
    simgcd: ParametricSettings = Field(default_factory=lambda: ParametricSettings())

    @model_validator(mode="after")
    def _some_token_has_a_loss(self) -> "PromptCALConfig":
        affinity, supervised = self.affinity, self.model.prompts and self.model.supervised_prompts
        if affinity.epochs and not supervised and {affinity.semicl, affinity.cal} <= {"prompt", "none"}:
            raise ValueError("affinity.semicl and affinity.cal are only on [P], but no prompt is supervised")
        return self

    @property
    def neighbours(self) -> int:
        """K, or M / (4 C) if it is not set."""
        return self.affinity.k or max(1, self.affinity.memory // (4 * self.n_classes))

    @property
    def recipe(self) -> Recipe:
        return PAPER if self.variant == "paper" else RELEASE
