"""Pairs of the affinity loss: simpler mining rules, sampled negatives, corrections by labels, and statistics."""

import torch
from torch import Tensor
from torch.nn import functional as F


def neighbour_positives(queries: Tensor, memory: Tensor, k: int) -> Tensor:
    """The ``k`` nearest other nodes of each query by cosine ("naive kNN"; boolean, queries x [queries; memory])."""
    nodes = F.normalize(torch.cat([queries, memory]).float(), dim=1)
    similarity = nodes[: len(queries)] @ nodes.T
    similarity.diagonal().fill_(-torch.inf)
    nearest = similarity.topk(min(k, max(0, len(nodes) - 1)), dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, nearest, True)


def ranking_positives(queries: Tensor, memory: Tensor, top: int) -> Tensor:
    """The other nodes with the same set of ``top`` largest features as the query (ranking statistics, Han 2020)."""
    nodes = torch.cat([queries, memory])
    largest = nodes.topk(min(top, nodes.shape[1]), dim=1).indices
    marks = torch.zeros_like(nodes, dtype=torch.float32).scatter_(1, largest, 1.0)
    shared = marks[: len(queries)] @ marks.T
    same = shared > largest.shape[1] - 0.5  # shared holds integers, in whatever precision the product is computed
    same.diagonal().fill_(False)
    return same


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
    """SemiPriori: labels correct the pairs of a labelled query and a labelled key.

    A key of the query's class becomes a positive. A key of another class is never a positive: if the graph had found
    it, it becomes a negative. If it was neither found nor sampled, it stays out of the anchors, so the number of
    negatives stays near the budget. Label -1 means unlabelled; pairs with an unlabelled node stay unchanged.
    """
    both_labelled = (query_labels >= 0).unsqueeze(1) & (key_labels >= 0).unsqueeze(0)
    same_class = query_labels.unsqueeze(1) == key_labels.unsqueeze(0)
    must_link, cannot_link = both_labelled & same_class, both_labelled & ~same_class
    wrongly_found = positives & cannot_link
    return (positives | must_link) & ~cannot_link, (negatives | wrongly_found) & ~must_link


def mining_statistics(
    positives: Tensor, query_truth: Tensor | None = None, key_truth: Tensor | None = None, n_known: int = 0
) -> dict[str, Tensor]:
    """Positives per query and share of queries without any; with the truth also precision and recall.

    Each value is a pair (sum, count), so that the pairs of many steps can be added before the division. ``positives``
    is boolean (queries x keys). True classes below ``n_known`` are known, the others are new, and -1 is unknown. With
    the truth, each statistic is also given for queries of known and of new classes (``positives_known``, ...).
    """
    found = positives.sum(dim=1)
    every_query = torch.ones_like(found, dtype=torch.bool)
    groups = {"": every_query}
    by_query = {"positives": (found, every_query), "without_positives": (found == 0, every_query)}
    if query_truth is not None and key_truth is not None:
        groups |= {"_known": (query_truth >= 0) & (query_truth < n_known), "_new": query_truth >= n_known}
        has_truth = (query_truth >= 0).unsqueeze(1) & (key_truth >= 0).unsqueeze(0)
        same_class = has_truth & (query_truth.unsqueeze(1) == key_truth.unsqueeze(0))
        hits = (positives & same_class).sum(dim=1)
        by_query |= {"precision": (hits, (positives & has_truth).sum(dim=1)), "recall": (hits, same_class.sum(dim=1))}
    # one sum for all statistics and groups, because this runs at every step
    pairs = torch.stack([row for pair in by_query.values() for row in pair])
    totals = (pairs * torch.stack([*groups.values()]).unsqueeze(1)).sum(dim=2).view(len(groups), len(by_query), 2)
    return {name + suffix: totals[g, s] for g, suffix in enumerate(groups) for s, name in enumerate(by_query)}
