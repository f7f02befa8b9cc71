"""The contrastive loss of PromptCAL (Eq. 1), defined by masks.

Warm-up, the semi-supervised terms with teacher keys, and contrastive affinity learning differ only in their
similarities and masks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from promptcal.config.schema import LossConfig


def contrastive_loss(
    similarity: Tensor, positives: Tensor, anchors: Tensor, temperature: float, *, reduction: str = "mean"
) -> Tensor:
    r"""Supervised contrastive loss with arbitrary positives and anchors.

    For query i with similarities $s_{ij}$, positives $P_i$, anchors $A_i$ and temperature
    $\tau$,

    $$L_i = -\frac{1}{|P_i|} \sum_{j \in P_i} \log \frac{\exp(s_{ij} / \tau)}{\sum_{k \in A_i} \exp(s_{ik} / \tau)}.$$

    A query without positives has a loss of 0.

    Args:
        similarity: Similarities, usually cosines (queries x keys).
        positives: Which keys are positives of each query (boolean, queries x keys); a subset of the anchors.
        anchors: Which keys are in the denominator (boolean, queries x keys).
        temperature: Positive number that divides the similarities.
        reduction: "mean" over all queries, "sum", or "none".

    Returns:
        The loss in float32: a scalar, or one value per query with "none".

    Examples:
        >>> s = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> positives = torch.tensor([[True, False], [False, False]])
        >>> contrastive_loss(s, positives, torch.ones_like(positives), 1.0, reduction="none")
        tensor([0.3133, 0.0000])
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    logits = similarity.float() / max(temperature, 1e-30)  # smaller values would overflow float32
    n_positives = positives.sum(dim=1)
    # with every key as an anchor, the logsumexp of a row without positives is finite, so its gradient is 0, not NaN
    anchors = anchors | (n_positives == 0).unsqueeze(1)
    if logits.shape[1] == 0:
        per_query = logits.sum(dim=1)
    else:
        log_total = logits.masked_fill(~anchors, -torch.inf).logsumexp(dim=1, keepdim=True)
        negative_log = (log_total - logits).masked_fill(~positives, 0.0)
        per_query = negative_log.sum(dim=1) / n_positives.clamp(min=1)
    if reduction == "none":
        return per_query
    return per_query.sum() if reduction == "sum" else per_query.sum() / max(1, len(per_query))


class SemiSupervisedTerms(NamedTuple):
    """The two terms of SemiCL (Eq. 3 and 8)."""

    self_supervised: Tensor
    supervised: Tensor

    def logs(self, token: str) -> dict[str, Tensor]:
        return {f"{token}/self": self.self_supervised, f"{token}/supervised": self.supervised}


def semi_supervised_terms(similarity: Tensor, labels: Tensor, settings: LossConfig) -> SemiSupervisedTerms:
    """Both terms of SemiCL for 2B features, where image ``i`` has its second view at ``i + B``; -1 = unlabelled.

    Args:
        similarity: Cosines of queries (rows) with keys (columns) in the same order (2B x 2B): the batch with itself in
            the warm-up, student with teacher later. The diagonal is never used.
        labels: The class number of each feature (2B), -1 = unlabelled.
        settings: The temperatures.

    Returns:
        The self-supervised and the supervised term, two scalars.
    """
    n = len(labels)
    own = torch.eye(n, dtype=torch.bool, device=labels.device)
    other_view = own.roll(n // 2, dims=1)
    self_supervised = contrastive_loss(similarity, other_view, ~own, settings.self_temperature)

    labelled = labels >= 0
    both_labelled = labelled.unsqueeze(1) & labelled
    same_class = both_labelled & (labels.unsqueeze(1) == labels)
    per_query = contrastive_loss(
        similarity, same_class & ~own, both_labelled & ~own, settings.supervised_temperature, reduction="none"
    )
    supervised = per_query.sum() / labelled.sum().clamp(min=1)
    return SemiSupervisedTerms(self_supervised, supervised)
