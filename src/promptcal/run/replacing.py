"""Replace several files of a run directory as one: after a crash, the run has either all old files or all new ones.

The new files are written to a folder of their own, which is renamed into place in one step. From then on they count:
the next command that opens the run finishes copying them, if the process that wrote them was killed.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from promptcal.run.directory import RunDirectory
from promptcal.runtime import files

REPLACED = (
    "assignments.csv",
    "assignments.parquet",
    "calibration.json",
    "categories.csv",
    "centroids.safetensors",
    "held_out.json",
    "results.json",
    "run.json",
)


def replace_files(directory: RunDirectory, fill: Callable[[Path], Any]) -> None:
    """``fill`` writes the new files to a folder; the caller holds the lock of the run directory."""
    files.write_folder(directory.pending_folder, fill)
    copy_pending(directory)


def finish_replacing(directory: RunDirectory) -> None:
    """Finish what a killed process began; nothing is done otherwise."""
    if directory.pending_folder.is_dir():
        directory.check_links()
        with directory.locked():
            if directory.pending_folder.is_dir():
                copy_pending(directory)


def copy_files(source: Path, target: Path) -> None:
    """Copy the files that can be replaced, each of them atomically."""
    for name in REPLACED:
        file = source / name
        if file.is_file() and not file.is_symlink():
            files.write_with(target / name, partial(shutil.copyfile, file))


def copy_pending(directory: RunDirectory) -> None:
    """The new files count; the caller holds the lock of the run directory."""
    copy_files(directory.pending_folder, directory.path)
    files.remove_folder(directory.pending_folder)
