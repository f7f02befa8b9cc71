"""How many images are of known classes, and from that the number of classes, with a distribution.

Known classes are hidden in turn, a fifth in each round: their labels are removed, so that their images are as those of
new classes. A fifth of the labels of the other classes are removed, too, so that these images are as the unlabelled
ones of known classes. The remaining labels are references. They whiten the embeddings, and describe each image by the
cosine with the nearest class mean, its margin, and the labels among its nearest neighbours. From this a logistic
regression learns to tell images of known classes from images of hidden ones. With its mean scores m_K and m_H on these
images, and m_U on the unlabelled ones, the share of unlabelled images of known classes is (m_U - m_H) / (m_K - m_H), or
5/4 of it, because each class is known in four of five rounds. No class is scored by a model that was trained on it.

If N_K of N images are of the k known classes, and new classes are as large on average, there are k N / N_K classes. A
bootstrap over the classes gives the distribution: of the mean scores, of those of the new classes, and of the number of
new classes that have N - N_K images together, with sizes drawn from those of the known classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F

from promptcal.discovery.heads import nearest_neighbours
from promptcal.discovery.whitening import whitening

NEIGHBOURS = 30
_NEAREST = 10
PARTS = 5  # of the known classes, each hidden once
_SHRINKAGE = 0.1  # of the covariance within classes
_LEAST_SHARE = 0.02  # of the unlabelled images; the number of classes grows without bound below
_LEAST_DIFFERENCE = 0.02  # between the mean scores of known and hidden classes
LEAST_CLASSES = 3


class ImageCounts(NamedTuple):
    """All labelled and unlabelled images; the embeddings may be those of a part of them."""

    labelled: int
    unlabelled: int

    @classmethod
    def of(cls, labels: np.ndarray) -> "ImageCounts":
        """Labels are -1 for unlabelled images."""
        return cls(int((labels >= 0).sum()), int((labels < 0).sum()))


@dataclass(frozen=True)
class KnownShare:
    """Mean scores of each known class as a known and as a hidden one, and that of the unlabelled images.

    ``sizes`` are the numbers of labelled images of the classes. ``parts`` is the number of rounds of hiding.
    """

    as_known: np.ndarray
    as_hidden: np.ndarray
    unlabelled: float
    sizes: np.ndarray
    images: ImageCounts
    parts: int

    @property
    def n_known(self) -> int:
        return len(self.as_known)

    @property
    def share(self) -> float:
        """The share of the unlabelled images that are of known classes."""
        weights = self.sizes
        found = self._share(np.average(self.as_known, weights=weights), np.average(self.as_hidden, weights=weights))
        return float(found)

    @property
    def n_classes(self) -> float:
        return self.n_known * sum(self.images) / float(self._n_of_known(np.array(self.share)))

    def _share(self, known: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        scale = self.parts / (self.parts - 1)
        raw = scale * (self.unlabelled - hidden) / np.maximum(known - hidden, _LEAST_DIFFERENCE)
        return np.clip(raw, _LEAST_SHARE, 1.0)

    def _n_of_known(self, share: np.ndarray) -> np.ndarray:
        return self.images.labelled + share * self.images.unlabelled

    def draw(self, n_draws: int, seed: int) -> np.ndarray:
        """Numbers of classes from the bootstrap."""
        generator = np.random.default_rng(seed)
        k, weights = self.n_known, self.sizes
        n_new = max(1, round(self.n_classes - k))
        inflation = np.sqrt(k / (k - 1))  # a resample of k varies less than k classes do

        def means(scores: np.ndarray, chosen: np.ndarray) -> np.ndarray:
            w = weights[chosen]
            return (w * scores[chosen]).sum(axis=1) / w.sum(axis=1)

        known, hidden = (np.average(s, weights=weights) for s in (self.as_known, self.as_hidden))
        chosen = generator.integers(k, size=(n_draws, k))
        of_known = known + inflation * (means(self.as_known, chosen) - known)
        of_hidden = hidden + inflation * (means(self.as_hidden, chosen) - hidden)
        new = generator.integers(k, size=(n_draws, n_new))  # the new classes are a sample, too
        of_new = of_hidden + means(self.as_hidden, new) - hidden
        n_of_known = self._n_of_known(self._share(of_known, of_new))
        rest = (sum(self.images) - n_of_known) / n_of_known  # in units of all known classes
        return k + self._classes_in(rest, generator)

    def _classes_in(self, rest: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """How many classes ``rest`` times the images of the known classes make up, with sizes like theirs."""
        k = self.n_known
        most = int(4 * k * rest.max()) + 20
        found = np.empty(len(rest))
        for i, amount in enumerate(rest):
            sizes = self.sizes[generator.integers(k, size=k)]
            drawn = np.cumsum(sizes[generator.integers(k, size=most)]) / self.sizes.sum()
            whole = int(np.searchsorted(drawn, amount))
            before = drawn[whole - 1] if whole else 0.0
            last = (amount - before) / (drawn[whole] - before) if whole < most else 0.0
            found[i] = whole + last
        return found


def can_measure(labels: np.ndarray) -> bool:
    """Whether enough classes have two or more labels."""
    return int((np.bincount(labels[labels >= 0]) > 1).sum()) >= LEAST_CLASSES


def measure_known_share(features: Tensor, labels: np.ndarray, images: ImageCounts, *, seed: int) -> KnownShare:
    """Measure the share in L2-normalised embeddings with labels (-1: none), if `can_measure`."""
    classes, own = np.unique(labels[labels >= 0], return_inverse=True)
    k, generator = len(classes), np.random.default_rng(seed)
    parts = min(PARTS, k)
    part_of_class = _parts(np.arange(k), parts, generator)[own]  # of each labelled image
    part_of_image = _parts_of_images(own, k, generator)
    rounds = [
        _hide(features, labels, part_of_class == part, (part_of_class != part) & (part_of_image == part))
        for part in range(parts)
    ]
    of_labelled, of_unlabelled = _scores(rounds, part_of_class)
    return KnownShare(
        _means(of_labelled, [r.known for r in rounds], own, k),
        _means(of_labelled, [r.hidden for r in rounds], own, k),
        of_unlabelled,
        np.bincount(own, minlength=k).astype(np.float64),
        images,
        parts,
    )


def whitened(features: Tensor, labels: np.ndarray) -> Tensor:
    """Embeddings in which the labelled classes have equal spread in all directions; unchanged for one image of each."""
    found = whitening(features, labels, _SHRINKAGE)
    return features if found is None else found.apply(features)


class _Round(NamedTuple):
    """Masks of the labelled images whose labels are removed in a round: those of hidden classes, and those of known
    ones. What describes each labelled and each unlabelled image then (images x 5)."""

    hidden: np.ndarray
    known: np.ndarray
    of_labelled: np.ndarray
    of_unlabelled: np.ndarray

    @property
    def removed(self) -> np.ndarray:
        return self.hidden | self.known


def _hide(features: Tensor, labels: np.ndarray, hidden: np.ndarray, known: np.ndarray) -> _Round:
    """Describe the images without these labels. The other labels are references, with numbers from 0."""
    references = np.flatnonzero(labels >= 0)[~(hidden | known)]
    remaining = np.full(len(labels), -1)
    remaining[references] = np.unique(labels[references], return_inverse=True)[1]
    described = describe_images(whitened(features, remaining), remaining)
    return _Round(hidden, known, described[labels >= 0], described[labels < 0])


def _parts_of_images(own: np.ndarray, n_classes: int, generator: np.random.Generator) -> np.ndarray:
    """A random part of each image of each class; -1 for the only image of a class, whose label is a reference."""
    parts = np.empty(len(own), dtype=np.int64)
    for number in range(n_classes):
        members = np.flatnonzero(own == number)
        parts[members] = _parts(members, PARTS, generator) if len(members) > 1 else -1
    return parts


def _parts(items: np.ndarray, n_parts: int, generator: np.random.Generator) -> np.ndarray:
    """A random part of each item; the parts have equal sizes."""
    return generator.permutation(np.arange(len(items)) % n_parts)


def _means(scores: list[np.ndarray], masks: list[np.ndarray], own: np.ndarray, n_classes: int) -> np.ndarray:
    """The mean score by class over all rounds of the labelled images in the masks; the mean of all for a class without
    any."""
    classes = np.concatenate([own[mask] for mask in masks])
    values = np.concatenate([s[mask] for s, mask in zip(scores, masks, strict=True)])
    counts = np.bincount(classes, minlength=n_classes)
    sums = np.bincount(classes, weights=values, minlength=n_classes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), values.mean())


def describe_images(features: Tensor, labels: np.ndarray) -> np.ndarray:
    """What tells images of known classes (labels 0 to k-1, -1: none) from others (images x 5).

    The cosine with the nearest class mean, its margin over the second one, the share of labelled images among the 10
    and the 30 nearest neighbours, and of labelled images of the nearest class among the 30.
    """
    cosines = _class_cosines(features, labels)
    neighbours = nearest_neighbours(features, min(NEIGHBOURS, len(features) - 1)).cpu().numpy()
    n_best = min(2, cosines.shape[1])
    best = np.partition(cosines, -n_best, axis=1)[:, -n_best:]
    found = labels[neighbours]
    nearest = cosines.argmax(axis=1)[:, None]
    columns = (
        best[:, -1],
        best[:, -1] - best[:, 0],
        (found[:, :_NEAREST] >= 0).mean(axis=1),
        (found >= 0).mean(axis=1),
        (found == nearest).mean(axis=1),
    )
    return np.stack(columns, axis=1)


def _class_cosines(features: Tensor, labels: np.ndarray) -> np.ndarray:
    """Cosine of each image with the mean of each class (images x classes)."""
    labelled = np.flatnonzero(labels >= 0)
    rows, own = torch.from_numpy(labelled), torch.from_numpy(labels[labelled])
    sums = features.new_zeros(int(labels.max()) + 1, features.shape[1])
    sums.index_add_(0, own.to(features.device), features[rows])
    return (features @ F.normalize(sums, dim=1).T).cpu().numpy()


def _scores(rounds: list[_Round], groups: np.ndarray) -> tuple[list[np.ndarray], float]:
    """Probabilities of a known class: of the labelled images in each round, and the mean over the unlabelled images.

    No class is scored by a model that was trained on it: there is a model for each of the ``groups`` of labelled
    images, trained on the other groups. Known and hidden images count the same in training.
    """
    training = np.concatenate([r.of_labelled[r.removed] for r in rounds])
    is_known = np.concatenate([r.known[r.removed] for r in rounds])
    group = np.concatenate([groups[r.removed] for r in rounds])
    mean, scale = training.mean(axis=0), np.maximum(training.std(axis=0), 1e-9)
    found = [np.zeros(len(groups)) for _ in rounds]
    unlabelled = []
    for number in range(int(groups.max()) + 1):
        score = _trained((training[group != number] - mean) / scale, is_known[group != number])
        for scores, r in zip(found, rounds, strict=True):
            scores[groups == number] = score((r.of_labelled[groups == number] - mean) / scale)
        unlabelled += [score((r.of_unlabelled - mean) / scale).mean() for r in rounds if len(r.of_unlabelled)]
    return found, float(np.mean(unlabelled)) if unlabelled else 0.0


def _trained(rows: np.ndarray, is_known: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Gives the probability of a known class; one half if there are only known or only hidden images to learn from."""
    if is_known.all() or not is_known.any():
        return lambda others: np.full(len(others), 0.5)
    model = LogisticRegression(class_weight="balanced", max_iter=500).fit(rows, is_known)
    return lambda others: model.predict_proba(others)[:, 1] if len(others) else np.empty(0)
