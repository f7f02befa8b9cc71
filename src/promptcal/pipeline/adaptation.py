"""A small projection of given features, trained with the losses of PromptCAL's warm-up, if held-out labels show a gain.

Views are the features with some of their numbers set to 0. The projection starts as the identity.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.config.schema import LossConfig
from promptcal.data.sampler import BalancedSampler
from promptcal.discovery.kmeans import SemiSupervisedKMeans
from promptcal.discovery.sampling import sample_rows
from promptcal.methods.losses import semi_supervised_terms
from promptcal.models.feature_network import FeatureNetwork, ProjectionKind
from promptcal.pipeline.continuation import is_clearly_better
from promptcal.pipeline.session import Session
from promptcal.pipeline.task import Task
from promptcal.run.results import Adaptation, ProjectionTrial
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed, isolated_rng

KINDS: tuple[ProjectionKind, ...] = ("linear", "mlp")
STEPS = 200
_BATCH = 256
_DROPPED = 0.2  # share of the numbers of a row that a view lacks
_LR = 0.006  # over the square root of the width: a change of all weights by d has a norm of d x that root
_MOST_COMPARED = 10_000  # rows that are clustered to compare projections
_STARTS = 5


def adapt_features(task: Task, features: Tensor, session: Session) -> tuple[FeatureNetwork, Adaptation]:
    """The projection that puts clearly more held-out labels into their class than none does, if there is one."""
    frozen: FeatureNetwork = task.network
    n_held_out = int((task.held_out >= 0).sum())
    if not n_held_out:
        return frozen, Adaptation(used="none", n_held_out=0, trials=[], reason="no label can be held out to compare")
    networks: dict[ProjectionKind, FeatureNetwork] = {"none": frozen}
    right: dict[ProjectionKind, np.ndarray] = {}
    with progress_bar(session.console) as bar:
        bar_task = bar.add_task("adapting the features", total=len(KINDS) * STEPS, note="")
        for kind in KINDS:
            networks[kind] = train_projection(
                features,
                task.training_labels,
                kind,
                task.config.loss,
                seed=derive_seed(task.config.seed, "adaptation", kind),
                on_step=lambda: bar.advance(bar_task),
            )
        for kind, network in networks.items():
            right[kind] = classified_right(network, features, task)
    shares = {kind: float(found.mean()) for kind, found in right.items()}
    trials = [ProjectionTrial(projection=kind, held_out=share) for kind, share in shares.items()]
    best = max(KINDS, key=lambda kind: shares[kind])
    compared = f"{shares[best]:.1%} of {n_held_out} held-out labels are right with the best projection ({best}), "
    compared += f"{shares['none']:.1%} without one"
    if is_clearly_better(right[best], right["none"]):
        used, reason = best, f"{compared}: more than chance explains"
    else:
        used, reason = "none", f"{compared}: no clear gain"
    return networks[used], Adaptation(used=used, n_held_out=n_held_out, trials=trials, reason=reason)


def train_projection(
    features: Tensor,
    labels: np.ndarray,
    kind: ProjectionKind,
    loss: LossConfig,
    *,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
) -> FeatureNetwork:
    """Train a projection of L2-normalised features with some labels (-1 = unlabelled)."""
    device, numbers = features.device, torch.from_numpy(labels)
    with isolated_rng(seed):
        network = FeatureNetwork(features.shape[1], kind).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=_LR / features.shape[1] ** 0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    sampler, generator = BalancedSampler(numbers >= 0, _BATCH), torch.Generator().manual_seed(seed)
    rows = torch.cat([sampler.epoch(seed + i) for i in range(-(-STEPS // sampler.steps_per_epoch))])[:STEPS]
    for batch in rows:
        views = features[batch.to(device)].repeat(2, 1)
        kept = torch.rand(views.shape, generator=generator) >= _DROPPED
        z = network(F.normalize(views * kept.to(views), dim=1))
        terms = semi_supervised_terms(z @ z.T, numbers[batch].repeat(2).to(device), loss)
        optimiser.zero_grad()
        ((1 - loss.alpha) * terms.self_supervised + loss.alpha * terms.supervised).backward()
        optimiser.step()
        schedule.step()
        on_step()
    return network.eval()


def classified_right(network: FeatureNetwork, features: Tensor, task: Task) -> np.ndarray:
    """Of each held-out label, whether k-means with the other labels puts its row into the cluster of its class."""
    labels, held_out = task.training_labels, task.held_out
    seed = derive_seed(task.config.seed, "adaptation", "comparison")
    others = np.flatnonzero(held_out < 0)
    chosen = others[sample_rows(labels[others], _MOST_COMPARED, seed).numpy()]
    rows = np.concatenate([np.flatnonzero(held_out >= 0), chosen])
    kmeans = SemiSupervisedKMeans(task.config.n_classes, _STARTS, random_state=seed)
    kmeans.fit(network.embed(features[torch.from_numpy(rows).to(features.device)]), labels[rows])
    n_held_out = int((held_out >= 0).sum())
    class_of_cluster = np.append(kmeans.classes_, np.full(task.config.n_classes, -1))
    return class_of_cluster[kmeans.labels_[:n_held_out]] == held_out[rows[:n_held_out]]
