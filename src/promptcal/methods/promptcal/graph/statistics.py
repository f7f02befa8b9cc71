"""Statistics of mining: how many positives are found, and how many of them are right if the truth is known."""

import torch
from torch import Tensor


def mining_statistics(
    positives: Tensor,
    query_truth: Tensor | None = None,
    key_truth: Tensor | None = None,
    n_known: int = 0,
) -> dict[str, Tensor]:
    """Positives per query and share of queries without any; with the truth also precision and recall.

    Each value is a pair (sum, count), so that the pairs of many steps can be added before the division.

    ``positives`` is boolean (queries x keys). In ``query_truth`` and ``key_truth``, classes below ``n_known`` are
    known, the others are new, and -1 is unknown. With the truth, each statistic is also given for the queries of known
    and of new classes (``positives_known``, ``positives_new``, ...).
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
