"""Which unlabelled images a linear classifier on the labels would move to another category.

The classifier is a ridge regression from the embeddings x_i to the categories c_i (one output each, 1 or 0): it
minimises

    sum_i w_i |W x_i - e(c_i)|^2 + p |W|^2

The labelled images together weigh as much as all others, which count for the category that they are in. Then every
category gets the same weight, and the weights add up to 1. With A = sum_i w_i x_i x_i^T + p, and with the leverage
h_i = w_i x_i^T A^-1 x_i, the output for an image that was left out is (W x_i - h_i e(c_i)) / (1 - h_i). So every image
is judged by the others alone, and no fold is trained again.

The labelled images say what this is worth. Each is left out, and the classifier is compared with the category that the
image was in before it got its label, or with its nearest centroid if the label is an old one. The penalty is the one
that has most labels right. The margin (how much larger the output of the new category must be than that of the present
one) is where the classifier has gained most labels, less 1.5 standard errors. If it gains no more than that anywhere,
no image moves.

Labels are no random sample of the images, and some are wrong, so this can be too optimistic. Therefore only a few
images move in one round, the clearest ones: so many that 0.75 % of the images would be lost if all moves were wrong,
by the share of labels that were right before. More can move in the next round.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from promptcal.discovery.calibration import left_out_cosines
from promptcal.discovery.partition import BLOCK, Partition
from promptcal.runtime.device import device_context
from promptcal.runtime.threads import threads_for

PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3)
LEAST_MARGIN = 0.05  # smaller differences are chance, whatever the labels say
_ERRORS = 1.5  # standard errors that a gain must exceed
_MOST_LOST = 0.0075  # share of the images
_MOST_LABELLED = 20_000  # labelled images that the penalty and the margin are chosen by


class Ridge(NamedTuple):
    """The regression for every penalty: ``axes`` (dim + 1 x dim + 1) are the eigenvectors of sum_i w_i x_i x_i^T for
    centred and scaled embeddings x_i that end with a 1, ``variances`` its eigenvalues, and ``products`` (dim + 1 x
    clusters) is sum_i w_i x_i e(c_i)^T on these axes."""

    mean: Tensor
    scale: Tensor
    axes: Tensor
    variances: Tensor
    products: Tensor

    def outputs_without(self, features: Tensor, clusters: Tensor, weights: Tensor, penalty: float) -> Tensor:
        """The outputs for images, each left out of the regression that it is a part of (images x clusters)."""
        points = _with_constant(features, self.mean, self.scale) @ self.axes
        shrunk = points / (self.variances + penalty)
        leverages = (weights * (shrunk * points).sum(dim=1)).clamp(max=1 - 1e-6).unsqueeze(1)
        own = F.one_hot(clusters.clamp(min=0), self.products.shape[1])
        return (shrunk @ self.products - leverages * own) / (1 - leverages)


def image_weights(labels: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """The weight of each image; 0 if it is in no category (-1)."""
    labelled, others = labels >= 0, (labels < 0) & (clusters >= 0)
    weights = labelled / max(labelled.sum(), 1) + others / max(others.sum(), 1)
    of_category = np.bincount(clusters[clusters >= 0], weights[clusters >= 0], minlength=n_clusters)
    weights[clusters >= 0] /= of_category[clusters[clusters >= 0]]
    return weights / weights.sum()


def fit_ridge(features: Tensor, clusters: Tensor, weights: Tensor, n_clusters: int) -> Ridge:
    """The regression of the categories on the embeddings, block by block."""
    mean = features.mean(dim=0)
    scale = sum((block - mean).norm(dim=1).sum() for block in features.split(BLOCK)) / len(features)
    size = features.shape[1] + 1
    squares, products = features.new_zeros(size, size), features.new_zeros(size, n_clusters)
    for block, of, weight in zip(features.split(BLOCK), clusters.split(BLOCK), weights.split(BLOCK), strict=True):
        points = _with_constant(block, mean, scale)
        weighted = (points * weight.unsqueeze(1)).T
        squares += weighted @ points
        products += weighted @ F.one_hot(of.clamp(min=0), n_clusters).to(points)
    variances, axes = torch.linalg.eigh(squares)
    return Ridge(mean, scale, axes, variances.clamp(min=0), axes.T @ products)


def _with_constant(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return F.pad((features - mean) / scale, (0, 1), value=1.0)


class Preferred(NamedTuple):
    """The category with the largest output for each image, and by how much it exceeds the output of another one."""

    clusters: np.ndarray
    margins: np.ndarray


def preferred(outputs: Tensor, present: np.ndarray) -> Preferred:
    """The preference over the ``present`` category of each image."""
    largest, found = outputs.max(dim=1)
    own = outputs.gather(1, torch.from_numpy(present).to(outputs.device).unsqueeze(1)).squeeze(1)
    return Preferred(found.cpu().numpy(), (largest - own).cpu().numpy())


def least_margin(gains: np.ndarray, margins: np.ndarray) -> float:
    """The margin from which on the moves of labelled images gain most, less 1.5 standard errors; infinite if
    nothing is gained. A move gains 1 if it is right, and -1 if the image was right before."""
    order = np.argsort(-margins, kind="stable")
    order = order[margins[order] >= LEAST_MARGIN]
    gained, changed = np.cumsum(gains[order]), np.cumsum(np.abs(gains[order]))
    value = gained - _ERRORS * np.sqrt(changed)
    if not len(order) or value.max() <= 0:
        return np.inf
    return float(margins[order[value.argmax()]])


def most_moves(n_images: int, accuracy: float) -> int:
    """So many images may move that 0.75 % of them are lost if all moves are wrong; at least one. A move loses nothing
    if the image was in a wrong category before, so the lower the ``accuracy`` is, the more may move."""
    return max(int(_MOST_LOST * n_images / max(accuracy, _MOST_LOST)), 1)


def moved_by_labels(
    features: Tensor,
    labels: np.ndarray,
    clusters: np.ndarray,
    unlabelled_in: np.ndarray,
    n_clusters: int,
    is_open: np.ndarray,
) -> np.ndarray:
    """The category of each image after the unlabelled ones have moved that the classifier clearly places elsewhere,
    the clearest ones if there are many (`most_moves`).

    ``clusters`` are the present categories (-1: none; such an image stays without one), those of the labels first.
    ``unlabelled_in`` is the category that an image with a new label was in before (-1: none, or the label is not new).
    ``is_open`` marks the classes that images may move to, if they have labels. A category that would lose all of its
    images keeps them.
    """
    labelled = np.flatnonzero(labels >= 0)
    if not len(labelled) or not is_open.any():
        return clusters
    can_enter = np.zeros(n_clusters, dtype=bool)
    can_enter[: len(is_open)] = is_open & (np.bincount(labels[labelled], minlength=len(is_open)) > 0)
    with device_context(features.device, torch.float32), threads_for(features.numel() * n_clusters):
        classifier = _LeftOut(features, labels, clusters, n_clusters)
        judged = labelled[:: -(-len(labelled) // _MOST_LABELLED)]
        penalty = classifier.best_penalty(judged, labels[judged])
        present = unlabelled_in[judged]
        present = np.where(present >= 0, present, classifier.nearest_centroids(judged))
        found = preferred(classifier.outputs(judged, penalty), present)
        gains = (found.clusters == labels[judged]).astype(int) - (present == labels[judged])
        margin = least_margin(gains, np.where(can_enter[found.clusters], found.margins, 0))

        others = np.flatnonzero((labels < 0) & (clusters >= 0))
        parts = [
            preferred(classifier.outputs(images, penalty), clusters[images])
            for images in np.array_split(others, -(-len(labels) // BLOCK))
        ]
    wanted, margins = (np.concatenate(of) for of in zip(*parts, strict=True))
    clear = np.flatnonzero((margins >= margin) & can_enter[wanted])
    most = most_moves(len(others), (present == labels[judged]).mean())
    moves = clear[np.argsort(-margins[clear], kind="stable")][:most]
    moved = clusters.copy()
    moved[others[moves]] = wanted[moves]
    emptied = np.setdiff1d(clusters, moved)
    return np.where(np.isin(clusters, emptied), clusters, moved)


class _LeftOut:
    """What the other images say of an image: the regression on all but it, and the centroids without it."""

    def __init__(self, features: Tensor, labels: np.ndarray, clusters: np.ndarray, n_clusters: int) -> None:
        self.features, self.n_clusters = features, n_clusters
        self.members = torch.from_numpy(clusters).to(features.device)
        self.weights = torch.from_numpy(image_weights(labels, clusters, n_clusters)).to(features)
        self.ridge = fit_ridge(features, self.members, self.weights, n_clusters)

    def outputs(self, images: np.ndarray, penalty: float) -> Tensor:
        rows = self._rows(images)
        return self.ridge.outputs_without(self.features[rows], self.members[rows], self.weights[rows], penalty)

    def best_penalty(self, images: np.ndarray, classes: np.ndarray) -> float:
        """The penalty with which most images are in their class, the smallest of several."""

        def n_right(penalty: float) -> int:
            return int((self.outputs(images, penalty).argmax(dim=1).cpu().numpy() == classes).sum())

        return max(PENALTIES, key=n_right)

    def nearest_centroids(self, images: np.ndarray) -> np.ndarray:
        """The category with the nearest centroid to each image, which is left out of its own."""
        centroids = Partition.from_members(self.features, self.members, self.n_clusters).centroids.to(self.features)
        sizes = self.members[self.members >= 0].bincount(minlength=self.n_clusters)
        parts = self._rows(images).split(BLOCK)
        cosines = (left_out_cosines(self.features[rows], self.members[rows], centroids, sizes) for rows in parts)
        return torch.cat([of.argmax(dim=1) for of in cosines]).cpu().numpy()

    def _rows(self, images: np.ndarray) -> Tensor:
        return torch.from_numpy(images).to(self.features.device)
