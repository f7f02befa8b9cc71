"""How mining fares, against the truth where it is known: it can starve or flood without a word."""

import torch
from torch import Tensor


def mining_statistics(
    positives: Tensor,
    query_truth: Tensor | None = None,
    key_truth: Tensor | None = None,
    n_known: int = 0,
) -> dict[str, Tensor]:
    """Positives per query, share of queries without any, and with the truth also precision and recall.

    Each is a pair: a sum, and of how many it is, so that pairs of many steps can be added before they are divided.
    ``positives`` is boolean (queries x keys). Of ``query_truth`` and ``key_truth`` numbers below ``n_known`` are
    known classes, the others new, -1 is untold; all four are then also given for queries of known and of new
    classes alone (``positives_known``, ``positives_new`` and so on).
    """
    found = positives.sum(dim=1)
    everyone = torch.ones_like(found, dtype=torch.bool)
    groups = {"": everyone}
    by_query = {"positives": (found, everyone), "without_positives": (found == 0, everyone)}
    if query_truth is not None and key_truth is not None:
        groups |= {"_known": (query_truth >= 0) & (query_truth < n_known), "_new": query_truth >= n_known}
        told = (query_truth >= 0).unsqueeze(1) & (key_truth >= 0).unsqueeze(0)
        right = told & (query_truth.unsqueeze(1) == key_truth.unsqueeze(0))
        hits = (positives & right).sum(dim=1)
        by_query |= {"precision": (hits, (positives & told).sum(dim=1)), "recall": (hits, right.sum(dim=1))}
    # all of them in one sum over the queries, for they are taken at every step
    pairs = torch.stack([row for pair in by_query.values() for row in pair])
    totals = (pairs * torch.stack([*groups.values()]).unsqueeze(1)).sum(dim=2).view(len(groups), len(by_query), 2)
    return {
        name + suffix: totals[group, place]
        for group, suffix in enumerate(groups)
        for place, name in enumerate(by_query)
    }
