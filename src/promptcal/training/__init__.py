"""The training loop that the stages of every method run in, and its checkpoints, records and validation."""
