"""The list of benchmarks on the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from promptcal.data.benchmarks import Listing, default_root


def show_datasets(rows: list[Listing], root: Path | None, console: Console) -> None:
    folder = default_root() if root is None else root
    table = Table()
    table.add_column("name", no_wrap=True)
    for column in ("images", "classes", "known", "labelled"):
        table.add_column(column, justify="right")
    table.add_column("data")
    for row in rows:
        dataset = row.setup.dataset
        images = f"{'' if dataset.exact else '~'}{dataset.n_images:,}"
        counts = (str(dataset.n_classes), str(len(row.setup.known)), f"{row.setup.share:.0%}")
        table.add_row(row.setup.name, images, *counts, "absent" if row.found is None else "present")
    console.print(table)
    console.print("labelled: share of the images of known classes", highlight=False)
    console.print(f"Looked in {folder.absolute()} for", markup=False, highlight=False, soft_wrap=True)
    for title, places in {row.setup.dataset.title: row.looked_for for row in rows}.items():
        names = " or ".join(place.relative_to(folder).as_posix() for place in places) or "included in the package"
        console.print(f"  {title}: {names}", markup=False, highlight=False, soft_wrap=True)
