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
    everyone = torch.ones(len(positives), dtype=torch.bool, device=positives.device)
    if query_truth is None or key_truth is None:
        return _counts(positives, everyone)
    told = (query_truth >= 0).unsqueeze(1) & (key_truth >= 0).unsqueeze(0)
    right = told & (query_truth.unsqueeze(1) == key_truth.unsqueeze(0))
    groups = {
        "": everyone,
        "_known": (query_truth >= 0) & (query_truth < n_known),
        "_new": query_truth >= n_known,
    }
    found: dict[str, Tensor] = {}
    for suffix, group in groups.items():
        counts = _counts(positives, group) | _agreement(positives & told, right, group)
        found |= {name + suffix: pair for name, pair in counts.items()}
    return found


def _counts(positives: Tensor, group: Tensor) -> dict[str, Tensor]:
    found = positives.sum(dim=1)
    return {
        "positives": torch.stack([(found * group).sum(), group.sum()]),
        "without_positives": torch.stack([((found == 0) & group).sum(), group.sum()]),
    }


def _agreement(positives: Tensor, right: Tensor, group: Tensor) -> dict[str, Tensor]:
    hits = ((positives & right).sum(dim=1) * group).sum()
    return {
        "precision": torch.stack([hits, (positives.sum(dim=1) * group).sum()]),
        "recall": torch.stack([hits, (right.sum(dim=1) * group).sum()]),
    }
