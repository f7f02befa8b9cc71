"""The command line that names a run's images again. A report suggests it to continue the run with new labels.

`--from` keeps the settings of the run, so only what is not a setting is repeated.
"""

import os
from pathlib import Path
from typing import Any

from promptcal.config import Config
from promptcal.methods import METHODS
from promptcal.pipeline.request import FitRequest


def repeated_words(request: FitRequest, config: Config) -> list[str]:
    """The command, its images and options with absolute paths; empty if images were given that have no path."""
    words = list(request.command)
    if not words:
        if not is_path(request.images):
            return []
        words = ["fit", absolute(request.images)]
    if request.sample is not None:
        words += ["--sample", str(request.sample)]
    if request.skip_unreadable:
        words.append("--skip-unreadable")
    if request.keep == "trained":  # `--from` does not take it over
        words += ["--keep", "trained"]
    if request.keep_confirmed:
        words.append("--keep-confirmed")
    if request.allow_long:
        words.append("--allow-long")
    if not request.command and is_path(request.truth):
        words += ["--truth", absolute(request.truth)]
    if config.model.weights is not None and not METHODS[config.method].trains:  # read again in each run
        words += ["--weights", absolute(config.model.weights)]
    if config.data.cache is not None:  # never taken from a previous run, which may be untrusted
        words += ["--set", f"data.cache={absolute(config.data.cache)}"]
    return words


def is_path(given: Any) -> bool:
    return isinstance(given, str | os.PathLike)


def absolute(path: str | os.PathLike[str]) -> str:
    return str(Path(os.path.expanduser(path)).absolute())
