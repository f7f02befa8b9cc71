"""Statistics of mining against a loop over queries and keys."""

import pytest
import torch

from promptcal.methods.promptcal.graph.pairs import mining_statistics


def brute_force(positives, query_truth, key_truth, group):
    queries = [i for i in range(len(positives)) if group(query_truth[i])]
    found = {name: [0, 0] for name in ("positives", "without_positives", "precision", "recall")}
    for i in queries:
        found["positives"][1] += 1
        found["without_positives"][1] += 1
        found["positives"][0] += sum(positives[i])
        found["without_positives"][0] += not any(positives[i])
        for j, is_positive in enumerate(positives[i]):
            if query_truth[i] < 0 or key_truth[j] < 0:
                continue
            same = query_truth[i] == key_truth[j]
            found["precision"][1] += is_positive
            found["recall"][1] += same
            for name in ("precision", "recall"):
                found[name][0] += is_positive and same
    return found


@pytest.mark.parametrize("seed", range(3))
def test_statistics_equal_a_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    positives = torch.rand(12, 30, generator=generator) < 0.1
    query_truth, key_truth = (torch.randint(-1, 5, (n,), generator=generator) for n in (12, 30))
    found = mining_statistics(positives, query_truth, key_truth, n_known=2)
    groups = {"": lambda t: True, "_known": lambda t: 0 <= t < 2, "_new": lambda t: t >= 2}
    for suffix, group in groups.items():
        expected = brute_force(positives.tolist(), query_truth.tolist(), key_truth.tolist(), group)
        assert {name: found[name + suffix].tolist() for name in expected} == expected


def test_without_truth_only_positives_are_counted():
    positives = torch.tensor([[True, True, False], [False] * 3, [True, False, False]])
    found = mining_statistics(positives)
    assert {name: pair.tolist() for name, pair in found.items()} == {"positives": [3, 3], "without_positives": [1, 3]}
