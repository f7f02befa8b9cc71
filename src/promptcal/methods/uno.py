"""UNO+ (Fini et al., *A Unified Objective for Novel Class Discovery*, ICCV 2021, as Vaze et al. adapt it to GCD).

One cross-entropy for labels and pseudo-labels, over the known classes' prototypes h and a head g of new ones:

    l = [ h(x), g(x) ]  cosines,   p = softmax( l / tau ),   tau = 0.1
    y_i = one-hot of the label, or for an unlabelled image the Sinkhorn-Knopp assignment of its other view:
    Y = diag(alpha) exp( L / epsilon ) diag(beta),  rows summing to 1, columns to B/K,   epsilon = 0.05, 3 iterations
    L = 1/2 [ 1/|heads| sum_g 1/(2B) sum_i l(y_i, p_i)  +  the same with over-clustering heads ]

There are 5 heads and 5 over-clustering heads with 3 times as many new clusters, each a perceptron and prototypes, which
are scaled to unit norm after each step. Views have colour jitter (probability 0.5), grey (0.2) and blur (0.2). In the
original an unlabelled image is always new and assigned to g only; here, as in the adaptation, to all categories. An
image is assigned to the category with the largest p of the head with the lowest training loss.
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.config import Config, Section
from promptcal.config.schema import LARGEST_WEIGHT, LEAST_TEMPERATURE
from promptcal.data import augment
from promptcal.methods.base import ClassifierMethod
from promptcal.models import ClassifierNetwork, CosineClassifier, PromptedViT
from promptcal.training.stage import Batch, Stage, StepResult

_LOSS_MOMENTUM = 0.99  # of the moving average that selects a head
_DRAWS = 8  # random numbers for each view


class UNOSettings(Section):
    """Heads, temperature and the Sinkhorn-Knopp algorithm."""

    temperature: float = Field(
        0.1, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="temperature of the predictions"
    )
    epsilon: float = Field(0.05, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="smoothness of the assignments")
    iterations: int = Field(3, ge=1, le=10_000, description="iterations of Sinkhorn-Knopp")
    heads: int = Field(
        5, ge=1, le=1000, description="clustering heads, and as many over-clustering heads; the best one assigns"
    )
    overclustering: int = Field(
        3, ge=1, le=1000, description="clusters of an over-clustering head for each new category"
    )
    augment: bool = Field(True, description="colour jitter, grey and blur in the views")


class UNOConfig(Config):
    uno: UNOSettings = Field(default_factory=lambda: UNOSettings())


def augmented(pixels: Tensor, draws: Tensor) -> Tensor:
    """Change the colours and sharpness of views with values 0..1 as their random numbers say (8 x views, from 0 to 1).

    The values are those of the published code for ImageNet: brightness and contrast change by up to 40 %, saturation
    by 20 %, hue by a tenth of the circle; the blur has a standard deviation of 0.1 to 2 pixels.
    """
    is_jittered, is_grey, is_blurred = draws[0] < 0.5, draws[1] < 0.2, draws[2] < 0.2
    changes = torch.where(is_jittered, 2 * draws[3:7] - 1, 0.0)  # from -1 to 1
    pixels = augment.brightness(pixels, 1 + 0.4 * changes[0])
    pixels = augment.contrast(pixels, 1 + 0.4 * changes[1])
    pixels = augment.saturation(pixels, 1 + 0.2 * changes[2])
    pixels = augment.hue(pixels, 0.1 * changes[3])
    pixels = augment.saturation(pixels, 1 - is_grey.to(pixels))
    return augment.blur(pixels, torch.where(is_blurred, 0.1 + 1.9 * draws[7], 0.0), radius=6)


@torch.no_grad()
def sinkhorn(similarity: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Assignments (images x clusters): rows sum to 1, columns nearly to images / clusters.

    Columns and rows of ``exp(similarity / epsilon)`` are scaled in turn, rows last; computed with logarithms, so that
    no exponential overflows.
    """
    log_plan = similarity.float() / epsilon
    for _ in range(iterations):
        log_plan = log_plan - log_plan.logsumexp(dim=0, keepdim=True)
        log_plan = log_plan - log_plan.logsumexp(dim=1, keepdim=True)
    return log_plan.exp()


def swapped_targets(cosines: Tensor, labels: Tensor, epsilon: float, iterations: int) -> Tensor:
    """y for 2B rows, the second view of image i at i + B: labels, and assignments of the other view."""
    n = len(labels) // 2
    labelled = labels >= 0
    targets = F.one_hot(labels.clamp(min=0), cosines.shape[1]).to(cosines)
    unlabelled = (~labelled[:n]).nonzero().squeeze(1)
    if len(unlabelled):
        for view, other in ((0, n), (n, 0)):
            targets[view + unlabelled] = sinkhorn(cosines.detach()[other + unlabelled], epsilon, iterations)
    return targets


class UNONetwork(ClassifierNetwork):
    def __init__(self, vit: PromptedViT, config: UNOConfig, n_known: int) -> None:
        super().__init__(vit)
        settings, hidden, out = config.uno, config.model.head_hidden, config.model.head_bottleneck
        n_new = config.n_classes - n_known
        self.temperature = settings.temperature
        self.known = CosineClassifier(vit.dim, n_known, unit_length=True)

        def head(clusters: int) -> nn.Sequential:
            perceptron = (nn.Linear(vit.dim, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, out))
            return nn.Sequential(*perceptron, CosineClassifier(out, clusters, unit_length=True))

        self.heads = nn.ModuleList(head(n_new) for _ in range(settings.heads))
        self.overclustering = nn.ModuleList(head(n_new * settings.overclustering) for _ in range(settings.heads))
        # not trained, but saved with the weights: it selects the head
        self.head_losses = nn.Parameter(torch.zeros(settings.heads), requires_grad=False)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        return {**super().trained_parameters(), "head_losses": self.head_losses}

    def normalize_prototypes(self) -> None:
        for head in (self.known, *(group[-1] for group in (*self.heads, *self.overclustering))):
            head.normalize()

    def forward(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Cosines with known and new prototypes, by head and by over-clustering head."""
        features = F.normalize(self.embeddings(images).cls.float(), dim=1)
        known, rescaled = self.known(features), self.rescale(features)
        heads, overclustering = (
            [torch.cat([known, head(rescaled)], dim=1) for head in group] for group in (self.heads, self.overclustering)
        )
        return heads, overclustering

    def classify(self, features: Tensor) -> Tensor:
        rescaled = self.rescale(features)
        by_head = torch.stack([head(rescaled) for head in self.heads])
        best = by_head.index_select(0, self.head_losses.argmin().unsqueeze(0)).squeeze(0)
        return torch.cat([self.known(features), best], dim=1) / self.temperature


class UNOStage(Stage):
    """``mean`` and ``std`` are those by which the views were normalised."""

    def __init__(self, name: str, network: UNONetwork, config: UNOConfig) -> None:
        super().__init__(name, network, config)
        _, mean, std = network.vit.preprocessing
        device = next(network.parameters()).device
        self.mean, self.std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (mean, std))

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        heads, overclustering = self.network(self.augmented(batch) if self.config.uno.augment else batch.views)
        by_head = torch.stack([self._cross_entropy(cosines, batch.labels) for cosines in heads])
        by_fine_head = torch.stack([self._cross_entropy(cosines, batch.labels) for cosines in overclustering])
        self.network.head_losses.lerp_(by_head.detach(), 1 - _LOSS_MOMENTUM)
        logs = {"clustering": by_head.mean(), "overclustering": by_fine_head.mean()}
        return StepResult((by_head.mean() + by_fine_head.mean()) / 2, logs)

    def after_update(self) -> None:
        self.network.normalize_prototypes()

    def augmented(self, batch: Batch) -> Tensor:
        """The views with changed colours. Each process of a group changes its part as one process would."""
        n = len(batch.labels) // 2
        draws = torch.rand(_DRAWS, 2, n, generator=batch.generator, device=batch.views.device)
        pixels = augmented(batch.views * self.std + self.mean, draws[:, :, self.network.group.part(n)].flatten(1))
        return (pixels - self.mean) / self.std

    def _cross_entropy(self, cosines: Tensor, labels: Tensor) -> Tensor:
        settings = self.config.uno
        targets = swapped_targets(cosines, labels, settings.epsilon, settings.iterations)
        return -(targets * torch.log_softmax(cosines / settings.temperature, dim=1)).sum(dim=1).mean()


class UNO(ClassifierMethod[UNOConfig]):
    name = "uno"
    title = "UNO+"
    config_class = UNOConfig
    stage_class = UNOStage
    presets: ClassVar[dict[str, Any]] = {
        "": {
            "model": {"prompts": 0},
            "data": {"batch_size": 256},
            "optim": {"warmup_epochs": 10, "min_lr": 1e-3, "weight_decay": 1e-4},
        }
    }

    def build_network(self, vit: PromptedViT, n_known: int) -> UNONetwork:
        return UNONetwork(vit, self.config, n_known)
