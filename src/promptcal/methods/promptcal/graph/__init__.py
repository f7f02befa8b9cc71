"""SemiAG: pseudo positives from a consensus graph, diffusion, a threshold, and the labels known beforehand."""

from promptcal.methods.promptcal.graph.affinity_graph import (
    AffinityGraph,
    GraphSettings,
    affinity_graph,
    affinity_threshold,
    consensus_graph,
    diffuse,
    nearest_neighbours,
    neighbour_graph,
    pseudo_positives,
)
from promptcal.methods.promptcal.graph.memory import EmbeddingMemory
from promptcal.methods.promptcal.graph.mining import neighbour_positives, ranking_positives
from promptcal.methods.promptcal.graph.prior import apply_label_prior, sample_negatives
from promptcal.methods.promptcal.graph.statistics import mining_statistics

__all__ = [
    "AffinityGraph",
    "EmbeddingMemory",
    "GraphSettings",
    "affinity_graph",
    "affinity_threshold",
    "apply_label_prior",
    "consensus_graph",
    "diffuse",
    "mining_statistics",
    "nearest_neighbours",
    "neighbour_graph",
    "neighbour_positives",
    "pseudo_positives",
    "ranking_positives",
    "sample_negatives",
]
