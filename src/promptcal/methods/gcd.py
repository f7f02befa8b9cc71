"""GCD (Vaze et al., *Generalized Category Discovery*, CVPR 2022).

Semi-supervised contrastive learning of the last block, without prompts:

    L = (1 - lambda) sum_i L^u_i + lambda sum_{i labelled} L^s_i,   lambda = 0.35
    L^u_i = -log  exp(z_i . z'_i / tau_u) / sum_{n != i} exp(z_i . z_n / tau_u),                      tau_u = 1.0
    L^s_i = -1/|N(i)| sum_{q in N(i)} log  exp(z_i . z_q / tau_s) / sum_{n != i} exp(z_i . z_n / tau_s), tau_s = 0.07

with z = phi(f(x)) the L2-normalised projection and N(i) the labelled views of i's class. This is the loss of
PromptCAL's warm-up on the class token alone. Images are assigned by semi-supervised k-means on f(x).
"""

from typing import Any, ClassVar

from promptcal.config import Config
from promptcal.methods.base import Method, StageContext
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models import ProjectionNetwork
from promptcal.training.stage import Stage


class GCD(Method[Config]):
    name = "gcd"
    title = "GCD"
    presets: ClassVar[dict[str, Any]] = {"": {"model": {"prompts": 0}}}

    def stage(self, name: str, network: ProjectionNetwork, context: StageContext) -> Stage:
        return WarmupStage(name, network, self.config.loss)

    def validation_score(self, stage: str, known: float, silhouette: float) -> float:
        return known
