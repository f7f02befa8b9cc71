"""The HTML report of a run, and its figures. Importing this package loads no numerical library."""

FIGURE_NAMES = ("tsne", "confusion", "attention", "neighbours", "curves")
SPLITS = ("train", "test")
