"""How far a confidence can be taken at its word, and from where on an image is none of the categories.

Scores of an image (cosines with the cluster centres, or a classifier's outputs) become shares by a softmax at a
temperature: that which makes the true classes of labelled images the network did not learn from likeliest. Where it
learned from every label, images it knows too well stand in: they can show that it is too sure, but not vouch for more.
The threshold needs no label: it is the cosine with the nearest centre that 95 % of the images without one reach.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax
from torch import Tensor

from promptcal.discovery.partition import Partition, nearest_centres
from promptcal.errors import RunError
from promptcal.runtime import files

ACCEPTED_SHARE = 0.95
HELD_OUT, LEFT_OUT, NONE = "held-out", "left-out", "none"
_BINS = 15
_HOTTEST, _COLDEST = 1e3, 1e-4  # as multiples of the spread of the scores


@dataclass(frozen=True)
class Calibration:
    """``scores`` are what the temperature is of: "cosines" with the centres, or a classifier's "outputs".

    ``basis``: "held-out" labels, which training did not see, or "left-out", each in turn left out of its centre.

    The temperature is then not lowered below that of training. Where neither is to be had the basis is "none" and the
    temperature that of training. The ``threshold`` is from ``n_threshold`` images whose labels training did not see.
    ``error_*`` and ``nll_*`` are the expected calibration error and the mean negative log-likelihood of the ``n``
    images at the temperature of training and at the chosen one; ``accepted_*`` the share of the fit's own unlabelled
    images, assigned to known and to new categories, that the threshold accepts.
    """

    temperature: float
    scores: str = "cosines"
    threshold: float | None = None
    target: float = ACCEPTED_SHARE
    n_threshold: int = 0
    n: int = 0
    basis: str = NONE
    error_before: float | None = None
    error_after: float | None = None
    nll_before: float | None = None
    nll_after: float | None = None
    accepted_known: float | None = None
    accepted_new: float | None = None

    def write(self, path: Path) -> None:
        files.write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
            if not (found.temperature > 0 and math.isfinite(found.temperature)):
                raise ValueError(f"the temperature {found.temperature}")
            if found.threshold is not None and not math.isfinite(found.threshold):
                raise ValueError(f"the threshold {found.threshold}")
            return found
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunError(f"{path} cannot be read ({error}); fit again with --overwrite") from error


def calibrate_run(
    features: Tensor,
    partition: Partition,
    labels: np.ndarray,
    held_out: np.ndarray,
    *,
    logits: Tensor | None,
    labels_in_centres: bool,
    temperature: float,
) -> Calibration:
    """The temperature on labels that training did not see, or on all; the threshold on images it had no label for.

    Every image is held to centres made without it. ``logits`` are a classifier's, which there is nothing to leave an
    image out of. ``labels_in_centres``: labelled images were put into the cluster of their class before its centre
    was taken; otherwise they counted where the method itself puts them.
    """
    centres = partition.centres.to(features)
    if labels_in_centres:
        members = torch.from_numpy(partition.clusters).to(features.device)
    else:
        members = nearest_centres(features, centres) if logits is None else logits.argmax(dim=1)
    sizes = members.bincount(minlength=len(centres))
    cosines = left_out_cosines(features, members, centres, sizes).cpu().numpy()
    accompanied = (sizes[members] > 1).cpu().numpy()
    usable, basis = held_out >= 0, HELD_OUT
    if logits is None:
        if not usable.any():
            usable, basis = labels >= 0, LEFT_OUT
        usable = usable & accompanied
    scores = cosines if logits is None else logits.cpu().numpy()
    found = calibrate(Evidence(scores[usable], labels[usable], basis), temperature)
    similarity = cosines.max(axis=1)
    unseen = ((labels < 0) | (held_out >= 0)) & accompanied
    threshold = acceptance_threshold(similarity[unseen], ACCEPTED_SHARE) if unseen.any() else None
    known, unlabelled = partition.clusters <= labels.max(), (labels < 0) & accompanied
    accepted = similarity >= (-1.0 if threshold is None else threshold)
    return replace(
        found,
        scores="cosines" if logits is None else "outputs",
        threshold=threshold,
        n_threshold=int(unseen.sum()),
        accepted_known=_share(accepted[known & unlabelled]),
        accepted_new=_share(accepted[~known & unlabelled]),
    )


def _share(mask: np.ndarray) -> float | None:
    return float(mask.mean()) if len(mask) else None


class Evidence(NamedTuple):
    """Labelled images to take the temperature on: their scores and classes."""

    scores: np.ndarray
    classes: np.ndarray
    basis: str


def calibrate(evidence: Evidence, temperature: float) -> Calibration:
    """``temperature`` is that of training, to compare with."""
    scores, classes = evidence.scores.astype(np.float64), evidence.classes
    if not len(classes):
        return Calibration(temperature)
    chosen = best_temperature(scores, classes)
    if evidence.basis == LEFT_OUT:
        chosen = max(chosen, temperature)
    before, after = (softmax(scores / t, axis=1) for t in (temperature, chosen))
    return Calibration(
        chosen,
        n=len(classes),
        basis=evidence.basis,
        error_before=calibration_error(before, classes),
        error_after=calibration_error(after, classes),
        nll_before=negative_log_likelihood(scores, classes, temperature),
        nll_after=negative_log_likelihood(scores, classes, chosen),
    )


def best_temperature(scores: np.ndarray, classes: np.ndarray) -> float:
    """Where the negative log-likelihood of ``classes`` is least.

    Were all images right, that would be 0, a certainty that a handful of images cannot give. So each counts as right
    n+1 times in n+2 and else as the class it is likeliest to be mistaken for (Laplace's rule of succession).
    """
    n = len(classes)
    if scores.shape[1] < 2 or np.ptp(scores) == 0:
        return 1.0
    own = scores[np.arange(n), classes]
    others = scores.copy()
    others[np.arange(n), classes] = -np.inf
    target = own - (own - others.max(axis=1)) / (n + 2)

    def slope(inverse: float) -> float:
        """Of the likelihood by 1/temperature, in which it is convex."""
        return float(((softmax(scores * inverse, axis=1) * scores).sum(axis=1) - target).mean())

    spread = np.ptp(scores)
    hottest, coldest = 1 / (_HOTTEST * spread), 1 / (_COLDEST * spread)
    if slope(hottest) >= 0:  # worse than drawing lots
        return 1 / hottest
    if slope(coldest) <= 0:
        return 1 / coldest
    return float(1 / brentq(slope, hottest, coldest, xtol=1e-12, rtol=1e-10))


def negative_log_likelihood(scores: np.ndarray, classes: np.ndarray, temperature: float) -> float:
    scaled = scores / temperature
    return float((logsumexp(scaled, axis=1) - scaled[np.arange(len(classes)), classes]).mean())


def calibration_error(shares: np.ndarray, classes: np.ndarray, bins: int = _BINS) -> float:
    """Expected calibration error: |accuracy - mean confidence| over equal bins of confidence, weighted by size."""
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == classes
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(place, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(classes))


def acceptance_threshold(similarity: np.ndarray, share: float) -> float:
    """The largest value that at least ``share`` of the similarities reach."""
    return float(np.sort(similarity)[int((1 - share) * len(similarity) + 1e-9)])


def left_out_cosines(features: Tensor, members: Tensor, centres: Tensor, sizes: Tensor) -> Tensor:
    """Cosines of images with the centres, that of the cluster an image counts in without the image itself.

    ``centres`` are means over clusters of these ``sizes``. Of an image that is a cluster of its own nothing is left,
    and its cosine says nothing.
    """
    unit = torch.nn.functional.normalize(centres, dim=1)
    cosines = features @ unit.T
    without = sizes[members].unsqueeze(1) * centres[members] - features
    own = (features * torch.nn.functional.normalize(without, dim=1)).sum(dim=1, keepdim=True)
    return cosines.scatter(1, members.unsqueeze(1), own)
