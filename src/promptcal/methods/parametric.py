"""Losses of a classifier over all categories, as in SimGCD.

SimGCD uses only these (`methods/simgcd.py`); PromptCAL's second stage can add them (`affinity.classifier`).
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from promptcal.config import Section
from promptcal.config.schema import LARGEST_WEIGHT, LEAST_TEMPERATURE, MOST_EPOCHS


class ParametricSettings(Section):
    """Temperatures and weights of a classifier that learns from its own sharpened predictions."""

    student_temperature: float = Field(
        0.1, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="temperature of the student's predictions"
    )
    teacher_temperature_start: float = Field(
        0.07, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="temperature of the targets in the first epoch"
    )
    teacher_temperature: float = Field(
        0.04, ge=LEAST_TEMPERATURE, le=LARGEST_WEIGHT, description="temperature of the targets after teacher_epochs"
    )
    teacher_epochs: int = Field(
        30, ge=0, le=MOST_EPOCHS, description="epochs in which the temperature of the targets changes"
    )
    entropy_weight: float = Field(
        2.0, ge=0, le=LARGEST_WEIGHT, description="weight of the mean entropy, which spreads images over all categories"
    )


def labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the labelled rows (-1 = unlabelled); 0 without any."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="sum")
    return total / (labels >= 0).sum().clamp(min=1)


def mean_entropy(probabilities: Tensor) -> Tensor:
    """Entropy of the mean prediction of the batch; its maximum, log C, means that all categories are used evenly.

    >>> float(mean_entropy(torch.eye(4))) == float(torch.tensor(4.0).log())
    True
    """
    mean = probabilities.mean(dim=0)
    return -(mean * torch.log(mean.clamp(min=1e-12))).sum()  # finite gradient for unused categories


def self_distillation(
    cosines: Tensor, teacher_cosines: Tensor, student_temperature: float, teacher_temperature: float
) -> Tensor:
    """Mean cross-entropy with the teacher's prediction of the other view; image i has its second view at i + B."""
    targets = torch.softmax(teacher_cosines.detach() / teacher_temperature, dim=1)
    other_view = targets.roll(len(targets) // 2, dims=0)
    return -(other_view * torch.log_softmax(cosines / student_temperature, dim=1)).sum(dim=1).mean()


def teacher_temperature(settings: ParametricSettings, epoch: int) -> float:
    """The teacher's temperature: linear in the epoch, from its start at epoch 0 to its end at the end of the ramp."""
    start, end = settings.teacher_temperature_start, settings.teacher_temperature
    return start + min(1.0, epoch / max(1, settings.teacher_epochs - 1)) * (end - start)


class ParametricTerms(NamedTuple):
    """The unsupervised and the supervised term, and values to log."""

    unsupervised: Tensor
    supervised: Tensor
    logs: dict[str, Tensor]


def parametric_terms(
    cosines: Tensor, teacher_cosines: Tensor, labels: Tensor, settings: ParametricSettings, epoch: int
) -> ParametricTerms:
    """SimGCD's terms from the cosines of 2B views with the categories; label -1 = unlabelled."""
    student = settings.student_temperature
    distillation = self_distillation(cosines, teacher_cosines, student, teacher_temperature(settings, epoch))
    entropy = mean_entropy(torch.softmax(cosines / student, dim=1))
    supervised = labelled_cross_entropy(cosines / student, labels)
    logs = {"distillation": distillation, "mean_entropy": entropy, "classification": supervised}
    return ParametricTerms(distillation - settings.entropy_weight * entropy, supervised, logs)
