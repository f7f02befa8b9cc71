"""The end of a fit on the terminal: categories, accuracy, and where the results are."""

from collections import Counter

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from promptcal.methods import METHODS
from promptcal.metrics import DiscoveryAccuracy
from promptcal.run import Assignments, Run, RunResults, Scores
from promptcal.run.accuracy_rows import accuracy_rows, score_assignments
from promptcal.run.categories import AutomaticMerge, CategoryTable
from promptcal.runtime.phases import describe_phases

MOST_ADVICE = 6  # lines
STABILITY, NEAREST_KNOWN = "stability", "nearest known (distance)"
_LEGENDS = {
    STABILITY: "Stability: the share of the read-out's heads that agree on an image; some are doubtful below 1.",
    NEAREST_KNOWN: "Nearest known: the known category that looks most alike; a larger distance means less alike.",
}

ACCURACY = (
    "The last row is the result. Accuracy: share of images in the right category, clusters and classes matched one "
    "to one. All: of all these images; Known: of classes with labels; New: of the other classes."
)
AGREEMENT = " NMI, ARI: agreement without a matching."


def show_run(run: Run, console: Console, *, has_report: bool, verbose: bool = False) -> None:
    """``verbose`` adds NMI and ARI, and what the seconds were spent on."""
    results = run.directory.results()
    assert results is not None
    assignments = run.assignments()
    categories = categories_table(assignments, "unlabelled images", results.categories)
    console.print(categories)
    if legend := columns_legend(categories):
        console.print(legend, markup=False, highlight=False)
    console.print(_describe_categories(run, results), markup=False, highlight=False)
    if results.categories is not None:
        for line in shortened(results.categories.advice()):
            console.print(line, markup=False, highlight=False)
    table = results_table(results, verbose=verbose)
    if table.row_count:
        console.print(table)
        console.print(ACCURACY + AGREEMENT * verbose, markup=False, highlight=False)
    accuracy = score_assignments(assignments, run.truth(), run.info.known_classes)
    if accuracy is not None:
        console.print(headline(accuracy), highlight=False)
    for condition in results.unmet_conditions or ():
        console.print(f"Not as published: {condition}.", markup=False, highlight=False)
    if run.reason is not None:
        console.print(run.reason, markup=False, highlight=False)
    if results.adaptation is not None:
        features = "The features are" + (" not" if results.adaptation.used == "none" else "")
        console.print(f"{features} whitened: {results.adaptation.reason}.", markup=False, highlight=False)
    if results.changes is not None:
        changes = results.changes
        console.print(
            f"{changes.moved} of {changes.images} images moved to another category since {changes.previous_run}, "
            f"{changes.added} are new.",
            markup=False,
            highlight=False,
        )
    phases = results.phases if verbose else {}
    console.print(describe_phases(results.seconds or 0.0, phases), markup=False, highlight=False)
    console.print(f"Results in {run.path}:", markup=False, highlight=False)
    overview = run.directory.sheets_folder / "overview.png"
    shards = run.directory.shards_folder
    report = [(run.directory.report_file, "open this in a browser")] if has_report else []
    for file, description in (
        *report,
        (run.directory.assignments_file, "the category of each image"),
        (run.directory.categories_file, "the categories, with the nearest known one and suggestions"),
        *([(overview, "a picture of each category")] if overview.is_file() else []),
        *([(shards, "the category of every row, in shards")] if shards.is_dir() else []),
    ):
        console.print(f"  {file.relative_to(run.path)}  {description}", markup=False, highlight=False)


def shortened(advice: list[str]) -> list[str]:
    """The first lines of advice, and how many more there are."""
    if len(advice) <= MOST_ADVICE:
        return advice
    more = len(advice) - MOST_ADVICE
    return [*advice[:MOST_ADVICE], f"{more} more suggestion{'s' * (more > 1)}: see categories.csv or the report."]


def describe_merges(run: Run, merges: list[AutomaticMerge] | None) -> str:
    """How the number of categories came about, if it was estimated."""
    if not run.info.n_classes_estimated:
        return ""
    start, n_merged = run.config.n_classes, len(merges or [])
    agreed = ""
    if len(run.names) < start - n_merged:
        agreed = f" Of the numbers up to {start - n_merged}, the read-outs agree most on {len(run.names)}."
    if merges is None:
        return f" The number was estimated (class-count.png).{agreed}"
    if not merges:
        return (
            f" The number was estimated (class-count.png); no two categories were similar enough to be merged.{agreed}"
        )
    rate = max(merge.false_rate for merge in merges)
    number = "1 of them was" if len(merges) == 1 else f"{len(merges)} of them were"
    return (
        f" The number was estimated (class-count.png): training started with {start} categories, and "
        f"{number} merged into others that look the same. At most {100 * rate:.0f} % of the known classes are as "
        f"similar to another.{agreed}"
    )


def _describe_categories(run: Run, results: RunResults) -> str:
    known, new = sum(run.known), len(run.known) - sum(run.known)
    estimated = describe_merges(run, results.automatic_merges)
    return (
        f"{len(run.names)} categories: {known} known (some of their images have labels) and {new} new (found in "
        f"the unlabelled images; name them in the report).{estimated}"
    )


def categories_table(assignments: Assignments, title: str, described: CategoryTable | None = None) -> Table:
    table = Table("category", "kind")
    table.add_column(title, justify="right")
    accepted = np.ones(len(assignments), dtype=bool) if assignments.accepted is None else assignments.accepted
    counts = Counter(assignments.clusters[~assignments.labelled & accepted].tolist())
    stability = assignments.category_stability()
    if stability is not None:
        table.add_column(STABILITY, justify="right")
    if described is not None and any(assignments.known):
        table.add_column(NEAREST_KNOWN)
    for cluster, name in enumerate(assignments.names):
        cells = [escape(name), assignments.kind(cluster), str(counts[cluster])]
        if stability is not None:
            cells.append("-" if np.isnan(stability[cluster]) else f"{stability[cluster]:.2f}")
        if described is not None and any(assignments.known):
            category = described.categories[cluster]
            is_shown = category.kind == "new" and category.nearest_known is not None
            cells.append(f"{escape(category.nearest_known or '')} ({category.distance:.2f})" if is_shown else "")
        table.add_row(*cells)
    if not accepted.all():
        table.add_row("(none of these)", "", str(int((~accepted).sum())))
    return table


def columns_legend(table: Table) -> str:
    """What the columns of the table of categories mean that are not plain."""
    return " ".join(_LEGENDS[str(column.header)] for column in table.columns if column.header in _LEGENDS)


def headline(accuracy: Scores) -> str:
    """The accuracy of the assignments that the run has written."""
    percent = accuracy.percent()
    parts = ", ".join(f"{part} {percent[part]:.1f} %" for part in ("known", "new") if part in percent)
    return f"[bold]Accuracy of assignments.csv: {percent['all']:.1f} %[/bold] ({parts}), on the unlabelled images"


def results_table(results: RunResults, *, verbose: bool = False) -> Table:
    """Accuracy of the baselines and of each stage; the last row, in bold, is the result. ``verbose``: NMI and ARI."""
    rows = accuracy_rows(results, METHODS[results.method], results.selected)
    scored, columns = "unlabelled", {"All": "all", "Known": "known", "New": "new"}
    if results.protocol == "inductive":
        scored, columns = "test", {**columns, "Known*": "separate_known", "New*": "separate_new"}
    columns |= {"NMI": "nmi", "ARI": "ari"} if verbose else {}
    repeats = len(results.selected.repeats) if results.selected is not None else 0
    mean = f", mean of {repeats} seeds of k-means" if repeats else ""
    table = Table("", title=f"accuracy on the {scored} images, %{mean}", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for title, scores, is_result in rows:
        table.add_row(title, *_percentages(scores, tuple(columns.values())), style="bold" if is_result else None)
    return table


def accuracy_table(accuracy: DiscoveryAccuracy) -> Table:
    table = Table("accuracy, %")
    for column in ("All", "Known", "New", "NMI", "ARI"):
        table.add_column(column, justify="right")
    scores = Scores.of(accuracy)
    table.add_row("one matching (as papers report)", *_percentages(scores, ("all", "known", "new", "nmi", "ari")))
    separate = ("separate_all", "separate_known", "separate_new")
    table.add_row("separate matchings", *_percentages(scores, separate))
    return table


def _percentages(scores: Scores, parts: tuple[str, ...]) -> list[str]:
    known = scores.percent()
    return [f"{known[part]:.1f}" if part in known else "-" for part in parts]
