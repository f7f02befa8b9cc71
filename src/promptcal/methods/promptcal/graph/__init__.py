"""SemiAG: pseudo positives from a consensus graph, diffusion, a threshold, and the given labels."""
