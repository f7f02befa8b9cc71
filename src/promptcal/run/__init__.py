"""A run directory: its files, their models, and inference with a finished run."""
