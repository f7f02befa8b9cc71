"""The list of benchmarks on the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from promptcal.data.benchmarks import BenchmarkListing, default_root


def show_datasets(rows: list[BenchmarkListing], root: Path | None, console: Console) -> None:
    folder = default_root() if root is None else root
    table = Table()
    table.add_column("name", no_wrap=True)
    for column in ("images", "classes", "known", "labelled"):
        table.add_column(column, justify="right")
    table.add_column("data")
    for row in rows:
        spec = row.spec
        images = f"{'' if spec.has_exact_count else '~'}{spec.n_images:,}"
        counts = (str(spec.n_classes), str(len(spec.known)), f"{spec.labelled_share:.0%}")
        table.add_row(spec.name, images, *counts, "absent" if row.found is None else "present")
    console.print(table)
    console.print("labelled: share of the images of known classes", highlight=False)
    console.print(f"Looked in {folder.absolute()} for", markup=False, highlight=False, soft_wrap=True)
    for title, places in {row.spec.title: row.searched for row in rows}.items():
        names = " or ".join(place.relative_to(folder).as_posix() for place in places) or "included in the package"
        console.print(f"  {title}: {names}", markup=False, highlight=False, soft_wrap=True)
