"""SemiAG: pseudo positives from a consensus graph, diffusion, a threshold, and the given labels."""

from promptcal.methods.promptcal.graph.affinity_graph import AffinityGraph, GraphSettings, affinity_graph
from promptcal.methods.promptcal.graph.memory import EmbeddingMemory
from promptcal.methods.promptcal.graph.mining import neighbour_positives, ranking_positives
from promptcal.methods.promptcal.graph.prior import apply_label_prior, sample_negatives
from promptcal.methods.promptcal.graph.statistics import mining_statistics

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
