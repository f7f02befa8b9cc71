"""Learning by a classifier over all categories: its losses, and SimGCD's whole use of one.

SimGCD trains nothing else (`methods/simgcd.py`); PromptCAL's second stage can have one beside its own terms
(`affinity.classifier`).
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from promptcal.config import Section
from promptcal.config.schema import LEAST_TEMPERATURE


class ParametricSettings(Section):
    """Temperatures and weights of a classifier that learns from its own sharpened predictions."""

    student_temperature: float = Field(0.1, ge=LEAST_TEMPERATURE)
    teacher_temperature_start: float = Field(0.07, ge=LEAST_TEMPERATURE)
    teacher_temperature: float = Field(0.04, ge=LEAST_TEMPERATURE)
    teacher_epochs: int = Field(30, ge=0, description="epochs from the one to the other")
    entropy_weight: float = Field(2.0, ge=0)


def labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the labelled rows (-1 = unlabelled); 0 where there is none."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="sum")
    return total / (labels >= 0).sum().clamp(min=1)


def mean_entropy(probabilities: Tensor) -> Tensor:
    """H of the mean over the batch: largest, log C, where the categories are used evenly.

    >>> float(mean_entropy(torch.eye(4))) == float(torch.tensor(4.0).log())
    True
    """
    mean = probabilities.mean(dim=0)
    return -(mean * torch.log(mean.clamp(min=1e-12))).sum()  # clamped for the gradient of an unused category


def self_distillation(
    cosines: Tensor, teacher_cosines: Tensor, student_temperature: float, teacher_temperature: float
) -> Tensor:
    """Mean of l(q'_i, p_i) over 2B rows, the second view of image i at i + B; the teacher gets no gradient."""
    targets = torch.softmax(teacher_cosines.detach() / teacher_temperature, dim=1)
    other_view = targets.roll(len(targets) // 2, dims=0)
    return -(other_view * torch.log_softmax(cosines / student_temperature, dim=1)).sum(dim=1).mean()


def teacher_temperature(settings: ParametricSettings, epoch: int) -> float:
    """tau_t: linear by epoch from its start, reached at epoch 0, to its end, reached at the last of the ramp."""
    done = min(1.0, epoch / max(1, settings.teacher_epochs - 1))
    return settings.teacher_temperature_start + done * (
        settings.teacher_temperature - settings.teacher_temperature_start
    )


class ParametricTerms(NamedTuple):
    """L^u_cls, L^s_cls, and what to log of them."""

    unsupervised: Tensor
    supervised: Tensor
    logs: dict[str, Tensor]


def parametric_terms(
    cosines: Tensor, teacher_cosines: Tensor, labels: Tensor, settings: ParametricSettings, epoch: int
) -> ParametricTerms:
    """Of 2B views' cosines with the categories: agree with the teacher's sharpened view of the other view, use all
    categories evenly, and put labelled images (-1 = unlabelled) into their class."""
    student = settings.student_temperature
    distillation = self_distillation(cosines, teacher_cosines, student, teacher_temperature(settings, epoch))
    entropy = mean_entropy(torch.softmax(cosines / student, dim=1))
    supervised = labelled_cross_entropy(cosines / student, labels)
    logs = {"distillation": distillation, "mean_entropy": entropy, "classification": supervised}
    return ParametricTerms(distillation - settings.entropy_weight * entropy, supervised, logs)
