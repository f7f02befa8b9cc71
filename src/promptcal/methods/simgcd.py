"""SimGCD (Wen et al., *Parametric Classification for Generalized Category Discovery: A Baseline Study*, ICCV 2023).

A cosine classifier over all categories. The targets are its own sharpened predictions for the other view:

    p_i^(k) = softmax_k( h_i . c_k / tau_s ),   h_i = f(x_i)/|f(x_i)|,   tau_s = 0.1
    q_i: the same without gradient at tau_t,    tau_t from 0.07 to 0.04 over the first 30 epochs
    L^u_cls = 1/|B| sum_i l(q'_i, p_i) - epsilon H(p_mean),   p_mean = 1/(2|B|) sum_i (p_i + p'_i)
    L^s_cls = 1/|B^l| sum_{i labelled} l(y_i, p_i)
    L = (1 - lambda)(L^u_rep + L^u_cls) + lambda (L^s_rep + L^s_cls),   lambda = 0.35

with l the cross-entropy, q' and p' of the other view (both directions are taken), and L_rep the contrastive terms of
GCD on a projection of f(x). There is no averaged teacher: the targets are the student's own. epsilon depends on the
data set as in the published scripts, and is 2, the published code's default, elsewhere. Biases and norms have no weight
decay. An image is assigned to the category with the largest p.
"""

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.config import Config
from promptcal.methods.base import ClassifierMethod
from promptcal.methods.losses import semi_supervised_terms
from promptcal.methods.parametric import ParametricSettings, parametric_terms, teacher_temperature
from promptcal.models import CosineNetwork, DiscoveryNetwork, PromptedViT
from promptcal.models.head import initialize_projection
from promptcal.training.stage import Batch, Stage, StepResult

_ENTROPY_WEIGHTS = {
    "cifar10": 1.0,
    "cifar100": 4.0,
    "cifar100-c50-l10": 4.0,
    "cifar100-c25-l50": 4.0,
    "cifar100-c10-l50": 4.0,
    "imagenet100": 1.0,
    "cub": 2.0,
    "cars": 1.0,
    "aircraft": 1.0,
    "herbarium19": 1.0,
}


class SimGCDConfig(Config):
    """Weight and temperatures of the contrastive terms are those of `loss`."""

    simgcd: ParametricSettings = Field(default_factory=lambda: ParametricSettings())


class SimGCDNetwork(CosineNetwork):
    """A cosine classifier, and a projection for the contrastive terms."""

    def __init__(self, vit: PromptedViT, config: SimGCDConfig) -> None:
        super().__init__(vit, config.n_classes, config.simgcd.student_temperature)
        hidden, bottleneck = config.model.head_hidden, config.model.head_bottleneck
        self.projection = nn.Sequential(
            nn.Linear(vit.dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        initialize_projection(self.projection)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Cosines with the prototypes, and the L2-normalised projection z."""
        embedding = self.embeddings(images).cls.float()
        return self.classifier(embedding), F.normalize(self.projection(embedding).float(), dim=1)


class SimGCDStage(Stage):
    def recording_key(self, epochs_done: float) -> float:
        return teacher_temperature(self.config.simgcd, int(epochs_done))

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        weights = self.config.loss
        cosines, z = self.network(batch.views)
        parametric = parametric_terms(cosines, cosines, batch.labels, self.config.simgcd, int(epochs_done))
        contrastive = semi_supervised_terms(z @ z.T, batch.labels, weights)
        unsupervised = contrastive.self_supervised + parametric.unsupervised
        supervised = contrastive.supervised + parametric.supervised
        loss = (1 - weights.alpha) * unsupervised + weights.alpha * supervised
        return StepResult(loss, {**parametric.logs, **contrastive.logs("cls")})


class SimGCD(ClassifierMethod[SimGCDConfig]):
    name = "simgcd"
    title = "SimGCD"
    config_class = SimGCDConfig
    network_class = SimGCDNetwork
    stage_class = SimGCDStage
    presets: ClassVar[dict[str, Any]] = {
        "": {"model": {"prompts": 0}},
        # with few steps, the entropy term outweighs the labels at the preset's learning rate
        "quick": {"optim": {"lr": 0.01}},
        **{preset: {"simgcd": {"entropy_weight": weight}} for preset, weight in _ENTROPY_WEIGHTS.items()},
    }

    def parameter_groups(self, network: DiscoveryNetwork) -> list[dict[str, Any]]:
        """Parameters with one dimension, which are biases and norms, have no weight decay."""
        parameters = network.trained_parameters().values()
        return [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
