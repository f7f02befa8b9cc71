"""GCD: one step of training against loops over its equations."""

from torch.nn import functional as F
from training_step import contrastive_by_loops, one_step


def test_a_step_equals_the_equations(tmp_path):
    step = one_step(tmp_path, "gcd")
    network, batch = step.before, step.batch
    bottleneck = F.normalize(network.heads["cls"].mlp(network.vit(batch.views).cls), dim=1)
    z = F.normalize(bottleneck @ F.normalize(network.heads["cls"].last_layer.weight, dim=1).T, dim=1)
    unsupervised, supervised = contrastive_by_loops(z, batch.labels)
    step.check(0.65 * unsupervised + 0.35 * supervised, lr=0.1)
