"""The report of a run, and its figures."""

FIGURE_NAMES = ("tsne", "confusion", "attention", "neighbours", "curves")
