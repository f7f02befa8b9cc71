"""The one loss of the method: Eq. 1, a supervised-contrastive loss given by masks.

Warm-up, the semi-supervised terms with teacher keys, and contrastive affinity learning differ only in the
similarities and masks they pass in.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def contrastive_loss(
    similarity: Tensor, positives: Tensor, anchors: Tensor, temperature: float, *, reduction: str = "mean"
) -> Tensor:
    """Minus the mean over a query's positives of ``log(exp(s+/t) / sum over anchors exp(s/t))``.

    ``similarity`` is queries x keys, the masks are boolean of the same shape, positives a subset of anchors.
    A query without positives contributes 0. ``reduction`` is "mean" over all queries, "sum", or "none".

    >>> s = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> positives = torch.tensor([[True, False], [False, False]])
    >>> contrastive_loss(s, positives, torch.ones_like(positives), 1.0, reduction="none")
    tensor([0.3133, 0.0000])
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    logits = similarity.float() / max(temperature, 1e-30)  # below that, cosines would leave float32's range
    n_positives = positives.sum(dim=1)
    # Rows without positives count for nothing; letting every key be an anchor there keeps the log-sum finite,
    # so that their zero gradient is not multiplied by a NaN.
    anchors = anchors | (n_positives == 0).unsqueeze(1)
    if logits.shape[1] == 0:
        per_query = logits.sum(dim=1)
    else:
        log_total = logits.masked_fill(~anchors, -torch.inf).logsumexp(dim=1, keepdim=True)
        minus_log_share = (log_total - logits).masked_fill(~positives, 0.0)
        per_query = minus_log_share.sum(dim=1) / n_positives.clamp(min=1)
    if reduction == "none":
        return per_query
    return per_query.sum() if reduction == "sum" else per_query.sum() / max(1, len(per_query))


class SemiSupervisedTerms(NamedTuple):
    """The two halves of SemiCL (Eq. 3 and 8)."""

    self_supervised: Tensor
    supervised: Tensor


def semi_supervised_terms(
    similarity: Tensor, labels: Tensor, *, self_temperature: float, supervised_temperature: float
) -> SemiSupervisedTerms:
    """Both terms of SemiCL on 2B features, the second view of image ``i`` at ``i + B``; label -1 = unlabelled.

    ``similarity`` compares queries (rows) with keys (columns) of the same order: the batch with itself at
    warm-up, student with teacher later. The entry of the same index is never a key.
    """
    n = len(labels)
    own = torch.eye(n, dtype=torch.bool, device=labels.device)
    other_view = own.roll(n // 2, dims=1)
    self_supervised = contrastive_loss(similarity, other_view, ~own, self_temperature)

    labelled = labels >= 0
    both_labelled = labelled.unsqueeze(1) & labelled.unsqueeze(0)
    same_class = both_labelled & (labels.unsqueeze(1) == labels.unsqueeze(0))
    per_query = contrastive_loss(
        similarity, same_class & ~own, both_labelled & ~own, supervised_temperature, reduction="none"
    )
    supervised = per_query.sum() / labelled.sum().clamp(min=1)
    return SemiSupervisedTerms(self_supervised, supervised)
