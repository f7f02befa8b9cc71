"""SemiAG: pseudo positives from a consensus graph, diffusion, a threshold, and the given labels."""

from promptcal.methods.promptcal.graph.affinity_graph import AffinityGraph, GraphSettings, affinity_graph
from promptcal.methods.promptcal.graph.memory import EmbeddingMemory
from promptcal.methods.promptcal.graph.pairs import (
    apply_label_prior,
    mining_statistics,
    neighbour_positives,
    ranking_positives,
    sample_negatives,
)

__all__ = [
    "AffinityGraph",
    "EmbeddingMemory",
    "GraphSettings",
    "affinity_graph",
    "apply_label_prior",
    "mining_statistics",
    "neighbour_positives",
    "ranking_positives",
    "sample_negatives",
]
