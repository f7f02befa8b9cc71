"""Semi-supervised k-means: centroids of known classes start at class means, and labelled points keep their class.

Several starts run as one batch of centroids [starts, clusters, dim]; converged starts are removed from the batch. On a
GPU a batch has as many starts as fit into memory, on a CPU one, so that its distances stay in the cache. Products use
full float32 precision, and the points are centred, so that a common offset does not cost precision.

Of many points, the starts are searched on a random part (``max_points_per_cluster``) in its principal components: all
starts run a few iterations there, and the best of them run until they converge. The very best one is then finished on
all points, block by block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClusterMixin
from torch import Tensor

from promptcal.discovery.sampling import sample_rows
from promptcal.runtime.device import device_context, widest_float
from promptcal.runtime.threads import threads_for

_MAX_ELEMENTS_ON_GPU = 1_500_000_000  # of the largest temporary tensor, points x starts x clusters
_BYTES_BY_ELEMENT = 12  # three temporary tensors of that size in float32
_MAX_DRAWN_FROM = 50_000_000  # points x starts, when initial centroids are drawn
_MAX_DRAWN_FROM_PART = 400_000  # the same on a part of the points
_MIN_PART = 10_000  # points that starts are searched on at least
_FIRST_ITERATIONS = 3  # of each start on a part
_FINALISTS = 2  # starts that converge on a part, for each one that is kept
_COMPONENTS = 64  # in which starts are searched on a part
_LAST_ITERATIONS = 20  # at most, on all points
_CHECKED_AT_ONCE = 4096  # points
_BLOCK_ELEMENTS = 1_000_000  # of a block of points, and of its distances to all centroids


def kmeans_plus_plus(
    points: Tensor, known_centres: Tensor, n_new: int, starts: int, generator: torch.Generator
) -> Tensor:
    """Initial centroids [starts, known + n_new, dim]: the known ones, then points sampled by squared distance (D^2)."""
    n = len(points)
    centroids = points.new_empty(starts, len(known_centres) + n_new, points.shape[1])
    centroids[:, : len(known_centres)] = known_centres
    nearest = torch.full((starts, n), torch.inf, device=points.device)
    if len(known_centres):
        nearest = _squared_distances(points, known_centres).min(dim=1).values.expand(starts, n)
    for i in range(n_new):
        # no centroid yet, or every point is on a centroid: uniform
        usable = torch.isfinite(nearest) & (nearest.sum(dim=1, keepdim=True) > 0)
        sampled = points[_draw(torch.where(usable, nearest, torch.ones_like(nearest)), generator)]
        centroids[:, len(known_centres) + i] = sampled
        nearest = torch.minimum(nearest, _squared_distances(points, sampled).T)
    return centroids


def _draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """One column index per row, in proportion to the weights (`torch.multinomial` without its size limit)."""
    cumulative = weights.to(widest_float(weights.device)).cumsum(dim=1)
    target = torch.rand(len(weights), 1, generator=generator, dtype=torch.float64).to(cumulative)
    chosen = torch.searchsorted(cumulative, target * cumulative[:, -1:], right=True)
    return chosen.squeeze(1).clamp(max=weights.shape[1] - 1)


def _squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """points x centroids, as one matrix product."""
    cross = points @ centroids.T
    norms = points.square().sum(dim=1, keepdim=True) + centroids.square().sum(dim=1)
    return (norms - 2 * cross).clamp(min=0)


class Limits(NamedTuple):
    """Points (a mask) that may only be in one of the first ``n_clusters`` clusters, and clusters (a mask) that have no
    points but the labelled ones of their class."""

    mask: Tensor
    n_clusters: int
    closed: Tensor


def lloyd(
    points: Tensor,
    centroids: Tensor,
    fixed: Tensor,
    *,
    max_iter: int = 200,
    tol: float = 1e-4,
    limits: Limits | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lloyd's algorithm for a batch of starts: labels, centroids, inertia and iterations of each start.

    ``fixed`` holds the cluster of each labelled point, or -1. A start stops when its centroids move by at most
    ``tol`` x the mean variance of the features (scikit-learn's rule). The labels belong to the returned centroids.
    """
    free = fixed < 0 if limits is None else (fixed < 0) & ~limits.mask
    starts, n_clusters, dim = centroids.shape
    centroids = centroids.clone()
    norms = points.square().sum(dim=1)
    threshold = tol * points.var(dim=0, unbiased=False).mean()
    active = torch.arange(starts, device=points.device)
    iterations = torch.zeros(starts, dtype=torch.long, device=points.device)
    relative = _relative_distances(points, centroids.view(-1, dim)).view(starts, n_clusters, -1)
    for _ in range(max_iter):
        labels, distances = _nearest(relative, norms, fixed, limits)
        updated = _update(points, labels, distances, centroids[active], free)
        shift = (updated - centroids[active]).square().sum(dim=2)
        centroids[active] = updated
        iterations[active] += 1
        is_moving = shift.sum(dim=1) > threshold
        if not bool(is_moving.all()):
            active, updated, shift, relative = (rows[is_moving] for rows in (active, updated, shift, relative))
            if len(active) == 0:
                break
        # distances to centroids that did not move stay the same
        moved = shift.flatten().nonzero().squeeze(1)
        fresh = _relative_distances(points, updated.view(-1, dim)[moved])
        if len(moved) == shift.numel():
            relative = fresh.view_as(relative)
        else:
            relative.view(-1, relative.shape[2])[moved] = fresh
    relative = _relative_distances(points, centroids.view(-1, dim)).view(starts, n_clusters, -1)
    labels, distances = _nearest(relative, norms, fixed, limits)
    return labels, centroids, distances.sum(dim=1, dtype=widest_float(points.device)), iterations


def lloyd_in_blocks(
    points: Tensor,
    offset: Tensor,
    centroids: Tensor,
    fixed: Tensor,
    *,
    max_iter: int,
    tol: float,
    limits: Limits | None = None,
) -> tuple[float, Tensor, Tensor, int]:
    """`lloyd` for one start on points that are centred by ``offset`` block by block: inertia, centroids, labels and
    iterations. An empty cluster keeps its centroid."""
    n_clusters, dim = centroids.shape
    size = max(1, _BLOCK_ELEMENTS // max(n_clusters, dim))
    labels = torch.empty(len(points), dtype=torch.long, device=points.device)

    def assign(centroids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sums and sizes of the clusters, the inertia, and the sum of all squares."""
        wide = widest_float(points.device)
        sums, sizes = centroids.new_zeros(n_clusters, dim), labels.new_zeros(n_clusters)
        inertia, squares = (torch.zeros((), dtype=wide, device=points.device) for _ in range(2))
        for first in range(0, len(points), size):
            part = slice(first, first + size)
            block = points[part] - offset
            of_block = None if limits is None else limits._replace(mask=limits.mask[part])
            norms = block.square().sum(dim=1)
            found, distances = _nearest(
                _relative_distances(block, centroids).unsqueeze(0), norms, fixed[part], of_block
            )
            labels[part] = found[0]
            more_sums, more_sizes = _cluster_sums(block, found, n_clusters)
            sums, sizes = sums + more_sums[0], sizes + more_sizes[0]
            inertia, squares = inertia + distances.sum(dtype=wide), squares + norms.sum(dtype=wide)
        return sums, sizes, inertia, squares

    iterations = 0
    sums, sizes, inertia, squares = assign(centroids)
    threshold = tol * float(squares) / (len(points) * dim)
    while iterations < max_iter:
        means = torch.where(sizes.unsqueeze(1) > 0, sums / sizes.unsqueeze(1).clamp(min=1), centroids)
        shift = float((means - centroids).square().sum())
        centroids, iterations = means, iterations + 1
        sums, sizes, inertia, _ = assign(centroids)
        if shift <= threshold:
            break
    return float(inertia), centroids, labels, iterations


def _relative_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """|c|^2 - 2 c.x (centroids x points): the squared distance minus |x|^2, which has the same order."""
    return torch.addmm(centroids.square().sum(dim=1, keepdim=True), centroids, points.T, alpha=-2.0)


def _nearest(relative: Tensor, norms: Tensor, fixed: Tensor, limits: Limits | None) -> tuple[Tensor, Tensor]:
    """The nearest cluster, or the fixed one, and the squared distance to it; both [starts, points]."""
    allowed = relative
    if limits is not None and bool(limits.closed.any()):
        allowed = relative.masked_fill(limits.closed[:, None], torch.inf)
    least, nearest = allowed.min(dim=1)
    if limits is not None and limits.n_clusters:
        least_of_first, nearest_of_first = allowed[:, : limits.n_clusters].min(dim=1)
        least = torch.where(limits.mask, least_of_first, least)
        nearest = torch.where(limits.mask, nearest_of_first, nearest)
    own = relative.gather(1, fixed.clamp(min=0).expand(len(relative), 1, -1)).squeeze(1)
    labels = torch.where(fixed >= 0, fixed, nearest)
    return labels, (torch.where(fixed >= 0, own, least) + norms).clamp(min=0)


def _update(points: Tensor, labels: Tensor, distances: Tensor, centroids: Tensor, free: Tensor) -> Tensor:
    """The mean of each cluster; an empty cluster moves to a free point far from its centroid."""
    n_clusters = centroids.shape[1]
    sums, sizes = _cluster_sums(points, labels, n_clusters)
    means = sums / sizes.unsqueeze(2).clamp(min=1)
    empty = sizes == 0
    if not bool(empty.any()):
        return means
    order = distances.masked_fill(~free, -1.0).argsort(dim=1, descending=True)
    rank = (empty.long().cumsum(dim=1) - 1).clamp(min=0, max=len(points) - 1)
    seeds = points[order.gather(1, rank)]
    return torch.where(empty.unsqueeze(2), seeds, means)


def _cluster_sums(points: Tensor, labels: Tensor, n_clusters: int) -> tuple[Tensor, Tensor]:
    """Sums [starts, clusters, dim] and sizes [starts, clusters] of the clusters."""
    starts, n = labels.shape
    if points.device.type == "cpu":
        sums = torch.zeros(starts, n_clusters, points.shape[1], dtype=points.dtype)
        for sums_of_start, clusters in zip(sums, labels, strict=True):
            sums_of_start.index_add_(0, clusters, points)
        return sums, torch.stack([clusters.bincount(minlength=n_clusters) for clusters in labels])
    # a matrix product, because atomic additions are not deterministic
    members = torch.zeros(starts, n_clusters, n, dtype=points.dtype, device=points.device)
    members.scatter_(1, labels.unsqueeze(1), 1.0)
    return members @ points, members.sum(dim=2).long()


def cluster_sums(points: Tensor, labels: Tensor, n_clusters: int) -> tuple[Tensor, Tensor]:
    """Sums (clusters x dim) and sizes of the clusters, block by block; points with the label -1 are left out."""
    sums, sizes = points.new_zeros(n_clusters, points.shape[1]), labels.new_zeros(n_clusters)
    block = max(1, _BLOCK_ELEMENTS // max(n_clusters, points.shape[1]))
    for first in range(0, len(points), block):
        of_block = labels[first : first + block]
        members = of_block >= 0
        more_sums, more_sizes = _cluster_sums(
            points[first : first + block][members], of_block[members].unsqueeze(0), n_clusters
        )
        sums, sizes = sums + more_sums[0], sizes + more_sizes[0]
    return sums, sizes


def _means(points: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    """The mean of each cluster; an empty cluster keeps its centroid."""
    sums, sizes = cluster_sums(points, labels, len(centroids))
    return torch.where(sizes.unsqueeze(1) > 0, sums / sizes.unsqueeze(1).clamp(min=1), centroids)


def _principal_axes(points: Tensor, n: int) -> Tensor:
    """The directions of largest variance of centred points (dim x n); all directions if there are no more."""
    if points.shape[1] <= n:
        return torch.eye(points.shape[1], device=points.device)
    return torch.linalg.eigh(points.T @ points).eigenvectors[:, -n:]


class _Start(NamedTuple):
    """What a start of k-means ended with."""

    inertia: float
    centroids: Tensor
    labels: Tensor
    n_iter: int


class _Problem(NamedTuple):
    """What a search is given; ``fixed`` has the clusters of labelled points, -1 elsewhere."""

    points: Tensor
    offset: Tensor
    fixed: Tensor
    init: Tensor | None
    limits: Limits | None
    generator: torch.Generator
    on_progress: Callable[[int], None]


class SemiSupervisedKMeans(ClusterMixin, BaseEstimator):
    r"""k-means with labels, as a scikit-learn estimator.

    Minimises the inertia over clusters $c_i$ and centroids $\mu$,

    $$\sum_{i=1}^N \lVert x_i - \mu_{c_i} \rVert^2 \quad \text{with } c_i = y_i \text{ for labelled points},$$

    by Lloyd's algorithm. Centroids of labelled classes start at the class means, the others by k-means++; the best of
    ``n_init`` starts is kept. Without labels this is plain k-means++.

    The i-th smallest class becomes cluster i, so classes 0..n-1 keep their numbers.

    Args:
        n_clusters: Number of clusters, those of labelled classes included.
        n_init: Starts; the one with the smallest inertia is kept.
        max_iter: Iterations of a start at most.
        tol: A start ends when its centroids move by at most this share of the mean variance of the features.
        random_state: Seed; None is a random one.
        n_kept: Starts whose centroids are kept.
        max_points_per_cluster: If there are more points than this for each cluster (and 10,000 in all), the starts are
            searched on a part of them; None: on all of them.

    Attributes:
        labels_: Cluster of each point (N).
        cluster_centers_: Centroids (clusters x dim).
        inertia_: Sum of squared distances of the points to their centroids.
        n_iter_: Iterations of the best start.
        classes_: Class ``classes_[i]`` is cluster i.
        kept_centers_: Centroids of the ``n_kept`` best starts (starts x clusters x dim), the best first.

    Examples:
        >>> X = np.array([[0.0], [0.2], [5.0], [5.1], [9.0], [9.1]])
        >>> SemiSupervisedKMeans(3, n_init=5, random_state=0).fit(X, [-1, 0, -1, 1, -1, -1]).labels_
        array([0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self,
        n_clusters: int,
        n_init: int = 100,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: int | None = None,
        n_kept: int = 1,
        max_points_per_cluster: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_kept = n_kept
        self.max_points_per_cluster = max_points_per_cluster

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        init: Any = None,
        limits: Limits | None = None,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> "SemiSupervisedKMeans":
        """Cluster points.

        Args:
            X: The points (N x dim), a NumPy array or a tensor on any device.
            y: The class number of each point (N), -1 = unlabelled; None: no labels.
            init: Centroids at which the first clusters start (rows x dim); None: at the class means. The others start
                by k-means++.
            limits: Points and clusters that are restricted.
            on_progress: Called with the number of finished starts.

        Returns:
            The estimator.
        """
        if self.n_init < 1:
            raise ValueError(f"n_init must be at least 1, not {self.n_init}")
        points = _as_points(X)
        offset = points.mean(dim=0)
        fixed, self.classes_ = self._fixed_clusters(points, y)
        generator = torch.Generator()
        if self.random_state is None:
            generator.seed()
        else:
            generator.manual_seed(self.random_state)
        if limits is not None:
            limits = limits._replace(mask=limits.mask.to(points.device), closed=limits.closed.to(points.device))
        init = None if init is None else _as_points(init).to(points)
        search = self._search_all if self._n_searched(len(points)) == len(points) else self._search_part
        with device_context(points.device, torch.float32), threads_for(points.numel() * self.n_clusters):
            starts = search(_Problem(points, offset, fixed, init, limits, generator, on_progress))
        best = starts[0]
        self.inertia_, self.n_iter_ = best.inertia, best.n_iter
        self.cluster_centers_ = (best.centroids + offset).cpu().numpy()
        self.labels_ = best.labels.cpu().numpy()
        self.kept_centers_ = np.stack([(start.centroids + offset).cpu().numpy() for start in starts])
        return self

    def _n_searched(self, n: int) -> int:
        """On how many of ``n`` points the starts are searched."""
        if self.max_points_per_cluster is None:
            return n
        return min(n, max(self.max_points_per_cluster * self.n_clusters, _MIN_PART))

    def _search_all(self, problem: _Problem) -> list[_Start]:
        """All starts on all points."""
        points, offset, fixed, init, limits, generator, on_progress = problem
        points = points - offset
        first = self._class_means(points, fixed) if init is None else init - offset
        return self._best_starts(points, fixed, first, limits, generator, on_progress)

    def _search_part(self, problem: _Problem) -> list[_Start]:
        """All starts on a part of the points, in its principal components; the best one is finished on all points."""
        points, offset, fixed, init, limits, generator, on_progress = problem
        first = (self._class_means(points, fixed) if init is None else init) - offset
        part = sample_rows(fixed.cpu().numpy(), self._n_searched(len(points)), generator).to(points.device)
        sampled = points[part].sub_(offset)
        axes = _principal_axes(sampled, _COMPONENTS)
        limits_of_part = None if limits is None else limits._replace(mask=limits.mask[part])
        found = self._best_starts(
            sampled @ axes, fixed[part], first @ axes, limits_of_part, generator, on_progress, race=True
        )
        best, *others = (s._replace(centroids=_means(sampled, s.labels, s.centroids @ axes.T)) for s in found)
        max_iter = min(self.max_iter, _LAST_ITERATIONS)
        finished = lloyd_in_blocks(
            points, offset, best.centroids, fixed, max_iter=max_iter, tol=self.tol, limits=limits
        )
        return [_Start(*finished), *others]

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """`fit`, then `labels_` (scikit-learn's default ignores ``y``).

        Args:
            X: The points, as in `fit`.
            y: The class numbers, as in `fit`.

        Returns:
            The cluster of each point (N).
        """
        return self.fit(X, y).labels_

    def predict(self, X: Any) -> np.ndarray:
        """Assign points to the nearest centroid.

        Args:
            X: The points (N x dim).

        Returns:
            The cluster of each point (N).
        """
        points = _as_points(X)
        centroids = torch.as_tensor(self.cluster_centers_, device=points.device)
        offset = centroids.mean(dim=0)
        with device_context(points.device, torch.float32):
            return _squared_distances(points - offset, centroids - offset).argmin(dim=1).cpu().numpy()

    def _fixed_clusters(self, points: Tensor, y: Any) -> tuple[Tensor, np.ndarray]:
        y = np.full(len(points), -1) if y is None else np.asarray(y.cpu() if isinstance(y, Tensor) else y)
        if y.shape != (len(points),):
            raise ValueError(f"y must have one entry per point ({len(points)}), not shape {y.shape}")
        classes = np.unique(y[y >= 0])
        n_free = int((y < 0).sum())
        if len(classes) > self.n_clusters:
            raise ValueError(f"{len(classes)} labelled classes do not fit into {self.n_clusters} clusters")
        if self.n_clusters - len(classes) > n_free:
            raise ValueError(
                f"{self.n_clusters - len(classes)} new clusters need at least as many unlabelled points, not {n_free}"
            )
        fixed = np.where(y >= 0, np.searchsorted(classes, y), -1)
        return torch.as_tensor(fixed, dtype=torch.long, device=points.device), classes

    def _class_means(self, points: Tensor, fixed: Tensor) -> Tensor:
        if not len(self.classes_):
            return points.new_zeros(0, points.shape[1])
        sums, sizes = cluster_sums(points, fixed, len(self.classes_))
        return sums / sizes.unsqueeze(1)

    def _best_starts(
        self,
        points: Tensor,
        fixed: Tensor,
        given: Tensor,
        limits: Limits | None,
        generator: torch.Generator,
        on_progress: Callable[[int], None],
        *,
        race: bool = False,
    ) -> list[_Start]:
        """The ``n_kept`` best starts, the best first.

        The first centroids start at ``given``. In a ``race``, only the best starts after a few iterations go on.
        """
        n_drawn = self.n_clusters - len(given)
        free = fixed < 0 if limits is None else (fixed < 0) & ~limits.mask
        starts = self.n_init if n_drawn else 1  # otherwise nothing is random
        best: list[_Start] = []
        done = 0
        max_iter, n_best = (_FIRST_ITERATIONS, _FINALISTS * self.n_kept) if race else (self.max_iter, self.n_kept)
        size = max(1, (_MAX_DRAWN_FROM_PART if race else _MAX_DRAWN_FROM) // len(points))
        for first in range(0, starts, size):
            drawn = kmeans_plus_plus(points[free], given, n_drawn, min(size, starts - first), generator)
            for centroids in drawn.split(self._max_batch(points)):
                found = self._run(points, centroids, fixed, limits, max_iter)
                best = sorted([*best, *found], key=lambda start: start.inertia)[:n_best]
                done += len(centroids)
                on_progress(done)
        if not race:
            return best
        finished: list[_Start] = []
        for centroids in torch.stack([start.centroids for start in best]).split(self._max_batch(points)):
            finished += self._run(points, centroids, fixed, limits, self.max_iter)
        return sorted(finished, key=lambda start: start.inertia)[: self.n_kept]

    def _run(
        self, points: Tensor, centroids: Tensor, fixed: Tensor, limits: Limits | None, max_iter: int
    ) -> list[_Start]:
        """`lloyd` for a batch of starts."""
        labels, centroids, inertia, n_iter = lloyd(
            points, centroids, fixed, max_iter=max_iter, tol=self.tol, limits=limits
        )
        return list(map(_Start, inertia.tolist(), centroids, labels, n_iter.tolist()))

    def _max_batch(self, points: Tensor) -> int:
        if points.device.type == "cpu":
            return 1
        limit = _MAX_ELEMENTS_ON_GPU
        if points.device.type == "cuda":
            limit = min(limit, torch.cuda.mem_get_info(points.device)[0] // (2 * _BYTES_BY_ELEMENT))
        return max(1, limit // (len(points) * self.n_clusters))


def _as_points(X: Any) -> Tensor:
    points = X if isinstance(X, Tensor) else torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32))
    points = points.detach().float()
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(f"X must be points x features with at least one point, not shape {tuple(points.shape)}")
    if not all(bool(torch.isfinite(block).all()) for block in points.split(_CHECKED_AT_ONCE)):
        raise ValueError("X holds NaN or infinite values")
    return points
