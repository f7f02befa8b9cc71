"""What a fit measured of itself, as a table for the terminal."""

from typing import Any

from rich.table import Table

from promptcal.methods import METHODS


def results_table(results: dict[str, Any]) -> Table:
    """Accuracy by step of the method, and of its last epoch where another was selected, for the terminal."""
    method = METHODS[results["method"]]
    steps = {
        "kmeans": "k-means, frozen backbone",
        "semi_supervised_kmeans": "semi-supervised k-means, frozen backbone",
        **(method.stage_titles or {results["method"]: method.title}),
    }
    rows = [
        (_row_label(title, results[step]), results[step]["accuracy"])
        for step, title in steps.items()
        if "accuracy" in results.get(step, {})
    ]
    scores = results.get("scores", {"selected": None, "last": None})
    if scores["selected"] not in (None, *(accuracy for _, accuracy in rows)):
        rows.append((f"{method.title}, untrained", scores["selected"]))
    if scores["last"] != scores["selected"]:
        rows.append((f"{method.title}, last epoch", scores["last"]))
    scored, columns = "unlabelled", {"All": "all", "Known": "known", "New": "new"}
    if results.get("protocol") == "inductive":
        scored, columns = "test", {**columns, "Known*": "separate_known", "New*": "separate_new"}
    table = Table(f"accuracy on the {scored} images, %", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for label, accuracy in rows:
        parts = (accuracy[part] for part in columns.values())
        table.add_row(label, *("-" if share is None else f"{100 * share:.1f}" for share in parts))
    return table


def _row_label(title: str, step: dict[str, Any]) -> str:
    """A step's title, with its epoch where that was selected from among others."""
    selected = step.get("best_epoch", 0) != step.get("epochs", 0)
    return f"{title}, epoch {step['best_epoch']} of {step['epochs']}" if selected else title
