"""Quality of a discovery: matched accuracy if the truth is known, silhouette if it is not."""

from promptcal.metrics.accuracy import DiscoveryAccuracy, contingency_table, discovery_accuracy, match_clusters
from promptcal.metrics.quality import silhouette

__all__ = ["DiscoveryAccuracy", "contingency_table", "discovery_accuracy", "match_clusters", "silhouette"]
