"""The package's version, as installed, and the git commit of a checkout that it runs from."""

import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    __version__ = version("promptcal")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"

_OTHER_REPOSITORY = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}  # set in the hooks of a repository


@cache
def source_commit(root: Path = Path(__file__).parents[2]) -> str | None:
    """The commit of the checkout ``root``, with "-dirty" if its files were changed since; None if it is no checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {key: value for key, value in os.environ.items() if key not in _OTHER_REPOSITORY}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # nothing is written
    try:
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
