"""How good a discovery is: matched accuracy where the truth is known, silhouette where it is not."""

from promptcal.metrics.accuracy import DiscoveryAccuracy, contingency_table, discovery_accuracy, match_clusters
from promptcal.metrics.quality import silhouette

__all__ = ["DiscoveryAccuracy", "contingency_table", "discovery_accuracy", "match_clusters", "silhouette"]
