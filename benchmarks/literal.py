"""SemiAG and the affinity loss with loops over nodes and pairs, as in the equations, to compare the speed with.

The recipe is that of the variant `official`: keys from the memory, positives count towards the budget of negatives.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcal.training.stage import StepResult


def literal_threshold(nodes: np.ndarray, k: int, quantile: float) -> tuple[np.ndarray, float]:
    """Diffused affinities of all nodes (Eq. 4 and 5) and the threshold."""
    n = len(nodes)
    neighbourhoods = []
    for i in range(n):
        cosines = [float(nodes[i] @ nodes[j]) for j in range(n)]
        others = sorted((j for j in range(n) if j != i), key=lambda j, c=cosines: -c[j])  # type: ignore[misc]
        neighbourhoods.append([*others[:k], i])
    graph = np.zeros((n, n))
    for members in neighbourhoods:
        for i in members:
            for j in members:
                if i != j:
                    graph[i, j] += 1
    for i in range(n):
        graph[i] /= max(1.0, graph[i].sum())
    half, diffused = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            half[i, j] = graph[i] @ graph[:, j]
    for i in range(n):
        for j in range(n):
            diffused[i, j] = half[i] @ graph[j] + (i == j)
    entries = [value for value in diffused.ravel() if value != 0]
    mean = sum(entries) / len(entries)
    above = sorted(value for value in entries if value > mean)
    place = quantile * (len(above) - 1)
    low = int(place)
    high = min(low + 1, len(above) - 1)
    return diffused, above[low] + (above[high] - above[low]) * (place - low)


def literal_affinity_term(stage: Any, token: str, queries: Tensor, teacher: Tensor, batch: Any) -> StepResult:
    memory, config, n = stage.memories[token], stage.config, len(queries)
    other_view = teacher.roll(n // 2, dims=0)
    nodes = torch.cat([other_view, memory.embeddings]).numpy().astype(np.float64)
    nodes /= np.linalg.norm(nodes, axis=1, keepdims=True)
    diffused, threshold = literal_threshold(nodes, config.neighbours, config.affinity.quantile)
    losses = []
    for i in range(n):
        positives = {j for j in range(len(memory)) if diffused[i, n + j] > threshold}
        rest = [j for j in range(len(memory)) if j not in positives]
        wanted = max(0, min(len(rest), config.affinity.negatives - len(positives)))
        negatives = {rest[int(j)] for j in torch.randperm(len(rest), generator=batch.generator)[:wanted]}
        for j in range(len(memory)):
            mine, its = int(batch.labels[i]), int(memory.labels[j])
            if mine >= 0 and mine == its:
                positives.add(j)
                negatives.discard(j)
            elif mine >= 0 and its >= 0 and j in positives:  # found, but of another class
                positives.discard(j)
                negatives.add(j)
        own = teacher[i] if token == "cls" else other_view[i]
        keys = [own, *(memory.embeddings[j] for j in (*positives, *negatives))]
        logits = torch.stack([queries[i] @ key for key in keys]) / config.loss.affinity_temperature
        total = torch.log(torch.stack([torch.exp(logit) for logit in logits]).sum())
        chosen = logits[: 1 + len(positives)]
        losses.append(-sum(logit - total for logit in chosen) / len(chosen))
    loss = torch.stack(losses).mean()
    return StepResult(loss, {"affinity": loss.detach(), "threshold": torch.tensor(threshold)})
