"""The commands that use the labels that a run's page downloads: apply them at once, or train again with them."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from promptcal.run.stored_run import StoredRun

if TYPE_CHECKING:
    from promptcal.run.inference import Run


def next_command(run: "Run") -> dict[str, str]:
    """The parts around the name of the label file and, where the labels need more categories, their number.

    The page knows both only when the labels are downloaded. ``name`` is the start of the command that applies the
    labels without training.
    """
    this_run, command = run.path.absolute(), image_words(run)
    name = shlex.join(["promptcal", "name", str(this_run)]) + " "
    output = next_output(this_run)
    if command:
        before = shlex.join(["promptcal", *command, "--labels"])
        after = shlex.join(["--from", str(this_run), "--output", str(output)])
        return {"before": f"{before} ", "after": f" {after}", "nClasses": " --n-classes ", "end": "", "name": name}
    skip = ", skip_unreadable=True" if run.directory.skipped_file.is_file() else ""
    call = "fit(images=..." if run.method.takes_images else "cluster(features=..."
    return {
        "before": f'promptcal.{call}, labels="',
        "after": f'", start_from={str(this_run)!r}, output={str(output)!r}{skip}',
        "nClasses": ", n_classes=",
        "end": ")",
        "name": name,
    }


def next_output(run: Path) -> Path:
    """The first free place: run-2 after run, run-3 after run-2."""
    match = re.fullmatch(r"(.+)-(\d{1,2})", run.name)
    stem, number = (match[1], int(match[2])) if match else (run.name, 1)
    while (place := run.with_name(f"{stem}-{number + 1}")).exists():
        number += 1
    return place


def image_words(run: StoredRun) -> list[str]:
    """Runs of version 0.2 and older recorded only the folder of their images."""
    if run.info.command or run.info.root is None:
        return run.info.command
    skip = ["--skip-unreadable"] if run.directory.skipped_file.is_file() else []
    return ["fit", run.info.root, *skip]
