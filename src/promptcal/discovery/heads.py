"""The trained read-out: a linear classifier on finished embeddings, started from clusters of k-means.

For an embedding x_i, head s gives the probabilities p_i = softmax(a W_s x_i + b_s), and training minimises

    0.5 CE(labelled) + e mean_u H(p_u) + KL(mean_i p_i || prior) + mean_ij JS(p_i, p_j)

over the labelled images, the unlabelled images u, all images i, and pairs of an image i and one of its nearest
neighbours j. H is the entropy, JS the Jensen-Shannon divergence H((p_i + p_j) / 2) - (H(p_i) + H(p_j)) / 2, which asks
for agreement but not for confidence. If the unlabelled images are a sample of more, they have more weight in the means
over all images. The sharpness a grows from 8 to 25 and the weight e from 0 to 0.3: a head that starts with soft
assignments depends less on its start. Each head starts at the centroids of one start of k-means, and votes for a
cluster of each image. A last head is trained with the clusters that have most votes as labels of all images. It is the
result; the share of the heads that agree with it is the stability of an image (what this gains:
`results/measurements.md`, "The result of several heads").
Entropy, labels and marginal are those of PIM (Chiaroni et al., ICCV 2023). The weights were chosen on the
development splits of CIFAR-100 and CUB (`promptcal benchmark NAME-dev`) and on the demo.

The gradient is computed in closed form, which takes a third of the time of automatic differentiation on a CPU. With
G = dL/dp, the gradient by the outputs is p (G - sum_k p_k G_k).
"""

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from promptcal.discovery.kmeans import cluster_sums
from promptcal.discovery.sampling import sample_rows, weight_in_sample
from promptcal.metrics.accuracy import contingency_table, match_clusters
from promptcal.runtime.device import device_context
from promptcal.runtime.threads import threads_for

HEADS = 12  # starts of k-means that a head is trained from
STEPS = 300
LABEL_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.3
SOFT, SHARP = 8.0, 25.0
NEIGHBOURS = 10
_LR, _LAST_LR = 0.01, 0.0005
_LR_WITHOUT_ANNEALING = 0.001
_ANNEALED_SHARE = 0.7  # of the steps, after which sharpness and entropy weight stay
_BATCH = 2048
_MOST_OUTPUTS = 2**23  # of a batch, of the heads that are trained at once
_CACHED_OUTPUTS = 2**19  # of a batch, of the heads whose gradients are computed together on a CPU
_MOST_IMAGES = 60_000  # that heads are trained on; nearest neighbours take time and memory by their square
_MOST_CONTINUED = 10_000
_ROUNDS = 10  # of matching and voting, at most
_BLOCK = 4096  # images at a time where no gradient is needed
_MOST_EXACT = 5000  # images whose nearest neighbours are searched among all images on a CPU
_PROBES = 10  # clusters that they are searched in otherwise
_MOST_COSINES = 2**20  # at a time in that search
_MOST_COSINES_ON_CPU = 2**23  # at a time among all images: 32 MB
_LEAST = 1e-8


class LinearHead(NamedTuple):
    """The outputs for embeddings x are x W^T + b (weight: clusters x dim, bias: clusters)."""

    weight: Tensor
    bias: Tensor

    def outputs(self, features: Tensor) -> Tensor:
        return features @ self.weight.to(features.device).T + self.bias.to(features.device)

    def reordered(self, order: Tensor) -> "LinearHead":
        return LinearHead(self.weight[order], self.bias[order])


class TrainedHeads(NamedTuple):
    """The head that is trained on the votes of all heads, its cluster of each image, and the share of the heads that
    agree.

    A single head is the result itself, and the stability is None.
    """

    head: LinearHead
    clusters: np.ndarray
    stability: np.ndarray | None


def find_neighbours(features: Tensor, k: int, centroids: Tensor) -> Tensor:
    """`nearest_neighbours` of few images or on a GPU, otherwise `neighbours_by_cluster`."""
    if features.device.type != "cpu" or len(features) <= _MOST_EXACT:
        return nearest_neighbours(features, k)
    return neighbours_by_cluster(features, k, centroids)


def nearest_neighbours(features: Tensor, k: int) -> Tensor:
    """The ``k`` images with the largest cosine with each image, without itself (images x k)."""
    found = []
    block = _BLOCK if features.device.type != "cpu" else min(_BLOCK, max(256, _MOST_COSINES_ON_CPU // len(features)))
    buffer = features.new_empty(min(block, len(features)), len(features))
    for first in range(0, len(features), block):
        rows = features[first : first + block]
        cosines = torch.mm(rows, features.T, out=buffer[: len(rows)])
        cosines[torch.arange(len(rows)), torch.arange(first, first + len(rows))] = -math.inf
        found.append(cosines.topk(k, dim=1).indices)
    return torch.cat(found)


def neighbours_by_cluster(features: Tensor, k: int, centroids: Tensor) -> Tensor:
    """Nearest neighbours as `nearest_neighbours`, searched only in the clusters whose centroids are nearest.

    Each image is searched for in its own cluster and in those with the most similar centroids, until they have 4 k
    images at least. Few neighbours are missed: they lie beyond a border that is far from the image's own cluster.
    """
    unit = F.normalize(centroids.to(features), dim=1)
    clusters = torch.cat([(block @ unit.T).argmax(dim=1) for block in features.split(_BLOCK)])
    order, sizes = clusters.argsort(stable=True), clusters.bincount(minlength=len(unit))
    members = order.split(sizes.tolist())
    nearest = (unit @ unit.T).fill_diagonal_(2.0).argsort(dim=1, descending=True).tolist()
    found = torch.empty(len(features), k, dtype=torch.long, device=features.device)
    for cluster, own in enumerate(members):
        if not len(own):
            continue
        searched, n = [], 0
        for rank, other in enumerate(nearest[cluster]):
            if rank >= _PROBES and n > 4 * k:
                break
            searched.append(members[other])
            n += len(members[other])
        candidates = torch.cat(searched)  # the own cluster is first
        among = features[candidates]
        for first in range(0, len(own), max(1, _MOST_COSINES // n)):
            rows = own[first : first + max(1, _MOST_COSINES // n)]
            cosines = features[rows] @ among.T
            cosines[torch.arange(len(rows)), torch.arange(first, first + len(rows))] = -math.inf
            found[rows] = candidates[cosines.topk(k, dim=1).indices]
    return found


def continued_head(features: Tensor, labels: np.ndarray, clusters: np.ndarray, centroids: Tensor) -> LinearHead:
    """A head that is trained from clusters and keeps their sizes."""
    prior = estimated_sizes(clusters, len(centroids))
    return train_heads(
        features, labels, centroids.unsqueeze(0), prior=prior, seed=0, annealed=False, most_images=_MOST_CONTINUED
    ).head


def train_heads(
    features: Tensor,
    labels: np.ndarray,
    starts: Tensor,
    *,
    prior: Tensor | None,
    seed: int,
    annealed: bool = True,
    most_images: int = _MOST_IMAGES,
    closed: Tensor | None = None,
    steps: int = STEPS,
    batch: int = _BATCH,
    unlabelled_weight: float = 1.0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> TrainedHeads:
    """Train a head from each start (starts x clusters x dim), and of several heads another one on their votes.

    Args:
        features: L2-normalised embeddings (images x dim).
        labels: The cluster of each labelled image, -1 for the others.
        prior: The expected share of each cluster; None: cluster sizes are free.
        annealed: Whether to begin with soft assignments, which may move far from the start.
        most_images: If there are more images, the heads are trained on a part of them.
        closed: Clusters (a mask) that no unlabelled image is assigned to.
        steps, batch: Steps of training, and images in each.
        unlabelled_weight: How many images an unlabelled one stands for, if these are all labelled images of a source
            and a sample of the others.
        on_progress: Called with the number of finished steps.
    """
    generator = torch.Generator().manual_seed(seed)
    device, n_clusters = features.device, starts.shape[1]
    with device_context(device, torch.float32), threads_for(_BATCH * starts.numel()):
        part, part_labels, chosen = features, torch.from_numpy(labels).to(device), torch.arange(len(features))
        if len(features) > most_images:
            chosen = sample_rows(labels, most_images, generator)
            part, part_labels = features[chosen.to(device)], part_labels[chosen.to(device)]
            unlabelled_weight *= weight_in_sample(labels, chosen.numpy())
        image_weights = torch.where(part_labels < 0, unlabelled_weight, 1.0).to(part)
        neighbours = find_neighbours(part, min(NEIGHBOURS, len(part) - 1), starts[0])
        groups = starts.to(features).split(max(1, _MOST_OUTPUTS // (_BATCH * n_clusters)))
        heads: list[LinearHead] = []
        for group in groups:
            done = len(heads) * steps  # of all heads
            training = _Heads(part, part_labels, neighbours, group, prior, image_weights)
            for step in training.train(generator, annealed, steps, batch):
                on_progress((done + step * len(group)) // len(starts))
            heads += training.heads()
        clusters = [_clusters(features, head, closed) for head in heads]
        found = most_voted(clusters, n_clusters, closed)
        order = np.arange(n_clusters)
        if annealed:
            order = class_order(found[chosen.numpy()], labels[chosen.numpy()], neighbours.cpu().numpy(), n_clusters)
            found = order.argsort()[found]
        if len(heads) == 1:
            return TrainedHeads(heads[0].reordered(torch.from_numpy(order)), found, None)
        voted = torch.from_numpy(np.where(labels >= 0, labels, found)[chosen.numpy()]).to(device)
        sums, sizes = cluster_sums(part, voted, n_clusters)
        # a cluster without votes starts where its number did
        start = torch.where(sizes.unsqueeze(1) > 0, sums, starts[0][order].to(part)).unsqueeze(0)
        training = _Heads(part, voted, neighbours, start, None if prior is None else prior[order], image_weights)
        for _ in training.train(generator, annealed=False, steps=steps, size=batch):
            pass
        head = training.heads()[0]
        found = _clusters(features, head, None if closed is None else closed[order])
    return TrainedHeads(head, found, np.mean([_same(found, own) for own in clusters], axis=0))


class _Heads:
    """Heads in training, as one batched product."""

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        neighbours: Tensor,
        starts: Tensor,
        prior: Tensor | None,
        image_weights: Tensor,
    ) -> None:
        self.features, self.labels, self.neighbours = features, labels, neighbours
        self.image_weights = image_weights
        self.prior = None if prior is None else prior.to(features)
        self.weight = F.normalize(starts, dim=2).requires_grad_()
        self.bias = starts.new_zeros(starts.shape[:2]).requires_grad_()

    def heads(self) -> list[LinearHead]:
        weights, biases = SHARP * self.weight.detach().cpu(), self.bias.detach().cpu()
        return [LinearHead(weight, bias) for weight, bias in zip(weights, biases, strict=True)]

    def train(self, generator: torch.Generator, annealed: bool, steps: int, size: int = _BATCH) -> Iterator[int]:
        """Yields the number of finished steps."""
        first_lr = _LR if annealed else _LR_WITHOUT_ANNEALING
        optimiser = torch.optim.Adam([self.weight, self.bias], lr=first_lr)
        for step in range(steps):
            progress = min(1.0, step / (_ANNEALED_SHARE * steps)) if annealed else 1.0
            for group in optimiser.param_groups:
                decay = (1 + math.cos(math.pi * step / steps)) / 2
                group["lr"] = _LAST_LR + (first_lr - _LAST_LR) * decay
            batch = torch.randperm(len(self.features), generator=generator)[:size]
            sharpness = SOFT * (SHARP / SOFT) ** progress
            neighbours = self._one_neighbour(batch, generator)
            self.weight.grad, self.bias.grad = self._gradients(batch, neighbours, sharpness, progress * ENTROPY_WEIGHT)
            optimiser.step()
            yield step + 1

    def _one_neighbour(self, images: Tensor, generator: torch.Generator) -> Tensor:
        if not self.neighbours.shape[1]:  # a single image
            return images.to(self.features.device)
        columns = torch.randint(self.neighbours.shape[1], (len(images),), generator=generator)
        return self.neighbours[images.to(self.features.device), columns.to(self.features.device)]

    @torch.no_grad()
    def _gradients(
        self, images: Tensor, neighbours: Tensor, sharpness: float, entropy_weight: float
    ) -> tuple[Tensor, Tensor]:
        """The gradients of the sum of all heads' losses by the weights and the biases."""
        images = images.to(self.features.device)
        labels, n = self.labels[images], len(images)
        x, x_pair = self.features[images], self.features[neighbours]
        labelled = labels >= 0
        agree = (labels < 0) | (self.labels[neighbours] < 0) | (labels == self.labels[neighbours])
        weights = self.image_weights[images].view(n, 1, 1)
        shares = weights / weights.sum()
        pairs = agree.view(n, 1, 1) * shares / 2
        unlabelled = (~labelled * (entropy_weight / (~labelled).sum().clamp(min=1))).view(n, 1, 1)
        by_label = labelled * (LABEL_WEIGHT / labelled.sum().clamp(min=1))

        def gradients(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            log_p, log_q = (_log_probabilities(rows, weight, bias, sharpness) for rows in (x, x_pair))
            p, q = log_p.exp(), log_q.exp()
            log_m = (p + q).div_(2).clamp_(min=_LEAST).log_()
            # dL/dp, without terms that are the same for all clusters: they do not change the result
            by_p = log_p.mul_(pairs - unlabelled).addcmul_(log_m, pairs, value=-1)
            if self.prior is not None:
                mean = (p * shares).sum(dim=0)
                by_p.addcmul_(shares, mean.clamp(min=_LEAST).log() - self.prior.clamp(min=_LEAST).log())
            by_q = log_q.sub_(log_m).mul_(pairs)
            by_output, by_pair_output = (
                g.sub_((g * share).sum(dim=2, keepdim=True)).mul_(share) for g, share in ((by_p, p), (by_q, q))
            )
            own = labels.clamp(min=0).view(n, 1, 1).expand(-1, p.shape[1], -1)
            counted = by_label.view(n, 1, 1) * (p.gather(2, own) >= _LEAST)  # as the loss, which is constant below
            by_output.addcmul_(p, counted).scatter_add_(2, own, -counted)
            by_weight = torch.addmm(by_output.view(n, -1).T @ x, by_pair_output.view(n, -1).T, x_pair)
            return sharpness * by_weight.view_as(weight), by_output.sum(dim=0) + by_pair_output.sum(dim=0)

        at_once = len(self.weight) if x.device.type != "cpu" else max(1, _CACHED_OUTPUTS // (n * self.bias.shape[1]))
        parts = zip(self.weight.split(at_once), self.bias.split(at_once), strict=True)
        by_weight, by_bias = zip(*(gradients(weight, bias) for weight, bias in parts), strict=True)
        return torch.cat(by_weight), torch.cat(by_bias)


def _log_probabilities(features: Tensor, weight: Tensor, bias: Tensor, sharpness: float) -> Tensor:
    """Images x heads x clusters, from one matrix product."""
    outputs = torch.addmm(bias.flatten(), features, weight.flatten(0, 1).T, alpha=sharpness)
    return torch.log_softmax(outputs.view(len(features), *bias.shape), dim=2)


def _clusters(features: Tensor, head: LinearHead, closed: Tensor | None) -> np.ndarray:
    if closed is not None:
        head = head._replace(bias=head.bias.masked_fill(closed.cpu(), -math.inf))
    found = [head.outputs(block).argmax(dim=1) for block in features.split(_BLOCK)]
    return torch.cat(found).cpu().numpy()


def most_voted(clusters: list[np.ndarray], n_clusters: int, closed: Tensor | None = None) -> np.ndarray:
    """The cluster of each image that most clusterings vote for.

    Clusters have the numbers of the clustering with the largest mean agreement with the others. Those of the others are
    matched one to one to the result so that most images agree, the votes are counted, and so on until nothing changes.
    Of equal votes, those of the first clustering count, and the most agreed one is the first. ``closed`` clusters (a
    mask) have no images, and are matched to themselves.
    """
    best = _most_agreed(clusters)
    ordered = [clusters[best], *clusters[:best], *clusters[best + 1 :]]
    found = ordered[0]
    for _ in range(_ROUNDS if len(clusters) > 2 else 0):
        renamed = np.stack([_renamed(own, found, n_clusters, closed) for own in ordered])
        votes = np.ones(renamed.shape, dtype=np.int16)
        for i, j in combinations(range(len(renamed)), 2):
            votes[[i, j]] += renamed[i] == renamed[j]
        voted = renamed[votes.argmax(axis=0), np.arange(len(found))]
        if (voted == found).all():
            break
        found = voted
    return found


def _most_agreed(clusters: list[np.ndarray]) -> int:
    """The number of the clustering that has the largest mean agreement with the others, the first of several."""
    agreed = np.zeros(len(clusters), dtype=np.int64)
    for (i, first), (j, second) in combinations(enumerate(clusters), 2):
        agreed[[i, j]] += int(_same(first, second).sum())
    return int(agreed.argmax())


def _renamed(clusters: np.ndarray, like: np.ndarray, n_clusters: int, closed: Tensor | None) -> np.ndarray:
    """Clusters with the numbers of those that they are matched to."""
    shared = contingency_table(clusters, like, n_clusters, n_clusters)
    if closed is not None:
        kept = np.flatnonzero(closed.cpu().numpy())
        shared[kept, kept] = len(clusters) + 1
    return linear_sum_assignment(shared, maximize=True)[1][clusters]


def class_order(clusters: np.ndarray, labels: np.ndarray, neighbours: np.ndarray, n_clusters: int) -> np.ndarray:
    """The cluster of each class, then the other clusters.

    A head can learn a few labels by heart, in a cluster of other images. So a class is the cluster with most of the
    unlabelled neighbours (images x k) of its labelled images, if this one has more than half of them. Otherwise it
    keeps the cluster with its number, if no other class takes it.
    """
    n_known, labelled = int(labels.max(initial=-1)) + 1, np.flatnonzero(labels >= 0)
    near = neighbours[labelled]
    is_counted = labels[near] < 0
    classes = np.broadcast_to(labels[labelled, None], near.shape)[is_counted]
    counts = contingency_table(classes, clusters[near[is_counted]], n_known, n_clusters)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    weights = np.where(shares > 0.5, shares, 0) + 1e-2 * np.eye(n_known, n_clusters) + 1e-4 * shares
    taken = linear_sum_assignment(weights, maximize=True)[1]
    return np.concatenate([taken, np.setdiff1d(np.arange(n_clusters), taken)])


def _same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether two clusterings agree on each image. Clusters are matched one to one so that most images agree."""
    match = match_clusters(first, second)
    return np.array([match.get(c, -1) for c in range(int(second.max()) + 1)])[second] == first


def estimated_sizes(clusters: np.ndarray, n_clusters: int, weights: np.ndarray | None = None) -> Tensor:
    """The share of each cluster, with one more image in each, so that none is 0."""
    sizes = np.bincount(clusters, weights, minlength=n_clusters) + 1
    return torch.from_numpy(sizes / sizes.sum()).float()
