"""One training loop; warm-up and affinity learning are stages that run in it."""
