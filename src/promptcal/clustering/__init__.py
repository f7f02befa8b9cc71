"""Semi-supervised k-means, the step that turns embeddings into categories."""

from promptcal.clustering.kmeans import SemiSupervisedKMeans, kmeans_plus_plus, lloyd

__all__ = ["SemiSupervisedKMeans", "kmeans_plus_plus", "lloyd"]
