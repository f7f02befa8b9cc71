"""What `promptcal name` changed, on the terminal."""

from rich.console import Console

from promptcal.pipeline.apply_names import NamingResult


def show_naming(found: NamingResult, console: Console, *, is_undone: bool) -> None:
    lines = [f"{old} is now {new}" for old, new in found.renamed.items()]
    lines += [f"{old} was merged into {new}" for old, new in found.merged.items()]
    lines += [f"{name} is a new category of {n} image{'s' * (n != 1)}" for name, n in found.added.items()]
    lines += [f"{found.moved} images moved to the category of their label"] if found.moved else []
    if is_undone:
        lines.append("The run is as its fit wrote it.")
    elif not lines:
        lines.append("The labels change no name and no image.")
    for line in [*lines, *(f"Note: {note}" for note in found.notes)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
