"""Semi-supervised k-means, the step that turns embeddings into categories; and how many there are."""

from promptcal.discovery.class_count import ClassCount, count_classes
from promptcal.discovery.kmeans import SemiSupervisedKMeans, kmeans_plus_plus, lloyd

__all__ = ["ClassCount", "SemiSupervisedKMeans", "count_classes", "kmeans_plus_plus", "lloyd"]
