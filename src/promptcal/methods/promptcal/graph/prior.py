"""Which pairs enter the affinity loss: drawn negatives, then what the labels say of pairs (SemiPriori)."""

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
    """Boolean mask of negatives, drawn for each query uniformly without replacement from its non-positives.

    A query gets ``budget`` of them, or ``budget`` minus its positives, or all there are if fewer.
    ``candidates`` (boolean, same shape) restricts what may be drawn.
    """
    allowed = ~positives if candidates is None else ~positives & candidates
    size = min(budget, positives.shape[1])
    if size <= 0:
        return torch.zeros_like(positives)
    scores = torch.rand(positives.shape, generator=generator, device=positives.device)
    drawn = scores.masked_fill(~allowed, -1.0).topk(size, dim=1)
    wanted = positives.new_full((len(positives),), budget, dtype=torch.long)
    if subtract_positives:
        wanted = wanted - positives.sum(dim=1)
    within_budget = torch.arange(size, device=positives.device) < wanted.unsqueeze(1)
    chosen = within_budget & (drawn.values >= 0)
    return torch.zeros_like(positives).scatter_(1, drawn.indices, chosen)


def apply_label_prior(
    positives: Tensor, negatives: Tensor, query_labels: Tensor, key_labels: Tensor
) -> tuple[Tensor, Tensor]:
    """SemiPriori: of two labelled nodes, same class makes a positive, another class a negative (-1 = unlabelled)."""
    both_labelled = (query_labels >= 0).unsqueeze(1) & (key_labels >= 0).unsqueeze(0)
    same = query_labels.unsqueeze(1) == key_labels.unsqueeze(0)
    must_link, cannot_link = both_labelled & same, both_labelled & ~same
    return (positives | must_link) & ~cannot_link, (negatives | cannot_link) & ~must_link
