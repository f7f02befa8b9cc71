"""Calibrated confidence, and the threshold below which an image belongs to none of the categories.

Scores of an image (cosines with the centroids, or a classifier's outputs) become probabilities by a softmax at a
temperature. The temperature maximises the likelihood of the true classes of labelled images that training did not
use. If training used every label, the training images are used instead, each left out of its own centroid; they can
show overconfidence, so the temperature is then never lowered. The threshold needs no label: 95 % of the unlabelled
images have at least this cosine with their nearest centroid.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax
from torch import Tensor

from promptcal.discovery.partition import BLOCK, Partition, nearest_centroids
from promptcal.runtime.json_model import JSONModel

ACCEPTED_SHARE = 0.95
Basis = Literal["held-out", "left-out", "none"]
_MAX_TEMPERATURE, _MIN_TEMPERATURE = 1e3, 1e-4  # as multiples of the spread of the scores

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Calibration(JSONModel):
    """`calibration.json`. ``scores`` says what the temperature applies to: "cosines" or a classifier's "outputs".

    ``basis`` names the ``n`` labels it is from: "held-out" ones, which training did not use, "left-out" ones, each left
    out of its own centroid, or "none"; the temperature is then that of training. ``error_*`` and ``nll_*`` are the
    expected calibration error and mean negative log-likelihood before and after; ``accepted_*`` the share of the fit's
    own unlabelled images, assigned to known and to new categories, that the threshold (from ``n_threshold``) accepts.
    """

    temperature: Annotated[float, Field(ge=1e-20, allow_inf_nan=False)]
    scores: Literal["cosines", "outputs"] = "cosines"
    threshold: Finite | None = None
    target: float = ACCEPTED_SHARE
    n_threshold: int = 0
    n: int = 0
    basis: Basis = "none"
    error_before: float | None = None
    error_after: float | None = None
    nll_before: float | None = None
    nll_after: float | None = None
    accepted_known: float | None = None
    accepted_new: float | None = None


def calibrate_run(
    features: Tensor,
    partition: Partition,
    labels: np.ndarray,
    held_out: np.ndarray,
    left_out: np.ndarray,
    *,
    outputs: Callable[[Tensor], Tensor] | None,
    labels_in_centroids: bool,
    temperature: float,
) -> Calibration:
    """Calibrate a finished run on its own images, block by block.

    Every image is compared with centroids computed without it. ``outputs`` returns a classifier's outputs for the
    images at some positions (None for cosines).
    ``held_out`` are labels that training did not use, -1 elsewhere. ``left_out`` are those that calibrate ``outputs``:
    the same ones, or labels that only a trained read-out did not use.
    ``labels_in_centroids``: see `Assignment`. ``temperature`` is that of training.
    """
    centroids = partition.centroids.to(features)
    blocks = torch.arange(len(features), device=features.device).split(BLOCK)
    if labels_in_centroids:
        members = torch.from_numpy(partition.clusters).to(features.device)
    elif outputs is None:
        members = torch.cat([nearest_centroids(features[rows], centroids) for rows in blocks])
    else:
        members = torch.cat([outputs(rows).argmax(dim=1) for rows in blocks])
    sizes = members.bincount(minlength=len(centroids))
    not_alone = (sizes[members] > 1).cpu().numpy()
    basis: Basis = "held-out" if (held_out >= 0).any() else "left-out"
    if outputs is not None:
        usable = left_out >= 0
    else:
        usable = (held_out if basis == "held-out" else labels) >= 0
        usable &= not_alone
    chosen = torch.from_numpy(usable).to(features.device)
    largest, of_usable = features.new_empty(len(features)), []
    for rows in blocks:
        cosines = left_out_cosines(features[rows], members[rows], centroids, sizes)
        largest[rows] = cosines.max(dim=1).values
        wanted = chosen[rows]
        of_usable.append(cosines[wanted] if outputs is None else outputs(rows[wanted]))
    found = calibrate(torch.cat(of_usable).cpu().numpy(), labels[usable], basis, temperature)
    similarity = largest.cpu().numpy()
    unseen = ((labels < 0) | (held_out >= 0)) & not_alone
    threshold = acceptance_threshold(similarity[unseen], ACCEPTED_SHARE) if unseen.any() else None
    known, unlabelled = partition.clusters <= labels.max(), (labels < 0) & not_alone
    accepted = similarity >= (-1.0 if threshold is None else threshold)
    return found.model_copy(
        update={
            "scores": "cosines" if outputs is None else "outputs",
            "threshold": threshold,
            "n_threshold": int(unseen.sum()),
            "accepted_known": _share(accepted[known & unlabelled]),
            "accepted_new": _share(accepted[~known & unlabelled]),
        }
    )


def _share(mask: np.ndarray) -> float | None:
    return float(mask.mean()) if len(mask) else None


def calibrate(scores: np.ndarray, classes: np.ndarray, basis: Basis, temperature: float) -> Calibration:
    """Choose the temperature by the scores and classes of labelled images; compare it with that of training."""
    scores = scores.astype(np.float64)
    if not len(classes):
        return Calibration(temperature=temperature)
    chosen = best_temperature(scores, classes)
    if basis == "left-out":
        chosen = max(chosen, temperature)
    before, after = (softmax(scores / t, axis=1) for t in (temperature, chosen))
    return Calibration(
        temperature=chosen,
        n=len(classes),
        basis=basis,
        error_before=calibration_error(before, classes),
        error_after=calibration_error(after, classes),
        nll_before=negative_log_likelihood(scores, classes, temperature),
        nll_after=negative_log_likelihood(scores, classes, chosen),
    )


def best_temperature(scores: np.ndarray, classes: np.ndarray) -> float:
    """The temperature with the lowest negative log-likelihood of ``classes``.

    If all images are right, that is 0, a certainty that few images cannot give. So each image counts as right n+1 times
    in n+2, and otherwise as the class with the next highest score (Laplace's rule of succession).
    """
    n = len(classes)
    if scores.shape[1] < 2 or np.ptp(scores) == 0:
        return 1.0
    own = scores[np.arange(n), classes]
    others = scores.copy()
    others[np.arange(n), classes] = -np.inf
    target = own - (own - others.max(axis=1)) / (n + 2)

    def slope(inverse: float) -> float:  # of the negative log-likelihood, which is convex in 1/temperature
        return float(((softmax(scores * inverse, axis=1) * scores).sum(axis=1) - target).mean())

    spread = np.ptp(scores)
    low, high = 1 / (_MAX_TEMPERATURE * spread), 1 / (_MIN_TEMPERATURE * spread)
    if slope(low) >= 0:  # worse than chance
        return 1 / low
    if slope(high) <= 0:
        return 1 / high
    return float(1 / brentq(slope, low, high, xtol=1e-12, rtol=1e-10))


def negative_log_likelihood(scores: np.ndarray, classes: np.ndarray, temperature: float) -> float:
    scaled = scores / temperature
    return float((logsumexp(scaled, axis=1) - scaled[np.arange(len(classes)), classes]).mean())


def calibration_error(shares: np.ndarray, classes: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - mean confidence| over equal bins of confidence, weighted by size."""
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == classes
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(classes))


def acceptance_threshold(similarity: np.ndarray, share: float) -> float:
    """The largest value that at least ``share`` of the similarities reach."""
    return float(np.sort(similarity)[int((1 - share) * len(similarity) + 1e-9)])


def left_out_cosines(features: Tensor, members: Tensor, centroids: Tensor, sizes: Tensor) -> Tensor:
    """Cosines of images with the centroids; the centroid of an image's own cluster is computed without the image.

    ``centroids`` are means over clusters of these ``sizes``. The cosine of the only image of a cluster has no meaning.
    """
    unit = torch.nn.functional.normalize(centroids, dim=1)
    cosines = features @ unit.T
    without = sizes[members].unsqueeze(1) * centroids[members] - features
    own = (features * torch.nn.functional.normalize(without, dim=1)).sum(dim=1, keepdim=True)
    return cosines.scatter(1, members.unsqueeze(1), own)
