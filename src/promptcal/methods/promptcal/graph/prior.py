"""Pairs of the affinity loss: sampled negatives, and corrections by the labels (SemiPriori)."""

import torch
from torch import Tensor


def sample_negatives(
    positives: Tensor,
    budget: int,
    *,
    subtract_positives: bool = True,
    candidates: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Boolean mask of negatives, sampled for each query uniformly without replacement from its non-positives.

    A query gets ``budget`` negatives, or ``budget`` minus the number of its positives (``subtract_positives``), or all
    non-positives if there are fewer. ``candidates`` (boolean, same shape) restricts the sampling.
    """
    allowed = ~positives if candidates is None else ~positives & candidates
    size = min(budget, positives.shape[1])
    if size <= 0:
        return torch.zeros_like(positives)
    scores = torch.rand(positives.shape, generator=generator, device=positives.device)
    sampled = scores.masked_fill(~allowed, -1.0).topk(size, dim=1)
    requested = positives.new_full((len(positives),), budget, dtype=torch.long)
    if subtract_positives:
        requested = requested - positives.sum(dim=1)
    within_budget = torch.arange(size, device=positives.device) < requested.unsqueeze(1)
    chosen = within_budget & (sampled.values >= 0)
    return torch.zeros_like(positives).scatter_(1, sampled.indices, chosen)


def apply_label_prior(
    positives: Tensor, negatives: Tensor, query_labels: Tensor, key_labels: Tensor
) -> tuple[Tensor, Tensor]:
    """SemiPriori: two labelled nodes are a positive pair if their class is the same, else a negative pair.

    Label -1 means unlabelled; pairs with an unlabelled node stay unchanged.
    """
    both_labelled = (query_labels >= 0).unsqueeze(1) & (key_labels >= 0).unsqueeze(0)
    same = query_labels.unsqueeze(1) == key_labels.unsqueeze(0)
    must_link, cannot_link = both_labelled & same, both_labelled & ~same
    return (positives | must_link) & ~cannot_link, (negatives | cannot_link) & ~must_link
