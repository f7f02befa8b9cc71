"""How the number of classes was estimated: a table for the terminal, and files with the curves."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Column, Table

from promptcal.discovery.class_count import ClassCount
from promptcal.runtime import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def class_count_table(count: ClassCount) -> Table:
    """Every number that was tried; the estimate is marked."""
    columns = ("classes", "accuracy of the labelled images, %", "silhouette", "inertia")
    table = Table("", *(Column(name, justify="right") for name in columns))
    for trial in count.trials:
        chosen = trial.n_classes == count.n_classes
        figures = (f"{100 * trial.accuracy:.1f}", f"{trial.silhouette:.3f}", f"{trial.inertia:.5g}")
        table.add_row("estimate" if chosen else "", str(trial.n_classes), *figures, style="bold" if chosen else None)
    return table


def estimators_table(count: ClassCount) -> Table:
    """Every estimator with its errors on hidden known classes; the one that was used is the first."""
    columns = ("estimate", "error on hidden classes, %", "calibrated", "interval")
    table = Table("estimator", *(Column(name, justify="right") for name in columns))
    for number, found in enumerate(count.estimates):
        figures = (f"{found.estimate:.0f}", f"{100 * found.error:.0f}", f"{found.n_classes:.0f}")
        interval = "{:.0f} to {:.0f}".format(*found.interval)
        table.add_row(found.estimator, *figures, interval, style="bold" if number == 0 else None)
    return table


def write_class_count(folder: Path, count: ClassCount) -> None:
    """Write class-count.json, .csv and .png to ``folder``."""
    files.make_folder(folder)
    count.write(folder / "class-count.json")
    rows = [(n_classes, *(f"{value:.6f}" for value in values)) for n_classes, *values in count.trials]
    files.write_csv(folder / "class-count.csv", ("classes", "accuracy", "silhouette", "inertia"), rows)
    figure = _figure(count)
    files.write_with(folder / "class-count.png", lambda temporary: figure.savefig(temporary, format="png", dpi=120))


def _figure(count: ClassCount) -> "Figure":
    """Labelled accuracy, silhouette and inertia over the number of classes, and the calibrated estimates."""
    from matplotlib.figure import Figure  # takes a while, and most fits need none
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure = Figure(figsize=(6, 7), layout="constrained")
    numbers, *curves = zip(*count.trials, strict=True)
    names = ("labelled accuracy", "silhouette", "inertia")
    panels = figure.subplots(4 if count.estimates else 3, sharex=True)
    for axes, name, values in zip(panels, names, curves, strict=False):
        axes.plot(numbers, values, marker="o", markersize=3)
        if count.interval is not None:
            axes.axvspan(*count.interval, color="tab:orange", alpha=0.2, label="{} to {}".format(*count.interval))
        axes.axvline(count.n_classes, color="tab:orange", label=f"{count.n_classes} classes")
        axes.set(ylabel=name, xscale="log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    if count.estimates:
        axes = panels[-1]
        for row, found in enumerate(reversed(count.estimates)):
            axes.plot(found.interval, (row, row), color="tab:blue")
            axes.plot(found.n_classes, row, marker="o", color="tab:blue")
        axes.set_yticks(range(len(count.estimates)), [found.estimator for found in reversed(count.estimates)])
        axes.grid(alpha=0.3)
    axes.set_xlabel("number of classes")
    figure.axes[0].legend()
    return figure
