"""Stage 1 of one run for many: ablations of stage 2 need not warm up again, and differ in nothing else."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from promptcal.config.schema import Config
from promptcal.errors import RunError
from promptcal.run.inference import RunDirectory
from promptcal.runtime import files
from promptcal.training.checkpoints import Checkpoints

WARMUP = "warmup"

# settings that stage 1 does not see
_LATER: dict[str, set[str] | None] = {
    "method": None,  # stage 1 alone or with stage 2
    "affinity": None,
    "clustering": None,
    "device": None,
    "compile": None,
    "tensorboard": None,
    "variant": None,
    "loss": {"beta", "affinity_temperature"},
    "gcd": None,  # of methods without a warm-up, or of what stage 2 borrows from them
    "simgcd": None,
    "orca": None,
    "uno": None,
    "rankstats": None,
    "estimation": None,
    "switches": {"prompt_head", "own_positive", "keys", "negatives", "threshold_diagonal", "beta_ramp_epochs"},
    "data": {"store", "cache"},
}


def what_warmup_depends_on(config: Config) -> dict[str, Any]:
    """The settings two runs must share to share their stage 1."""
    kept: dict[str, Any] = {}
    for key, value in config.model_dump().items():
        left_out = _LATER.get(key, set())
        if left_out is not None:
            kept[key] = {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value
    return kept


class SharedWarmup:
    """The finished warm-up of another run of the same images, labels and settings."""

    def __init__(self, run: str | PathLike[str]) -> None:
        self.directory = RunDirectory(run)
        self._checkpoints = Checkpoints(self.directory.checkpoints_folder)
        self._entry = self._read_entry()
        if self._entry is None or not self._checkpoints.best(WARMUP).exists():
            raise RunError(f"{self.directory.path} has no finished warm-up to share; let it train that far first")

    def _read_entry(self) -> dict[str, Any] | None:
        """What its results say of the warm-up, if that is done."""
        try:
            found = json.loads(self.directory.results_file.read_text(encoding="utf-8"))[WARMUP]
            return {key: found[key] for key in ("best_epoch", "epochs", "score")}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def check(self, config: Config, fingerprint: str) -> None:
        if self.directory.info().get("fingerprint") != fingerprint:
            raise RunError(f"the warm-up of {self.directory.path} is of other images or labels; choose another run")
        theirs, ours = (what_warmup_depends_on(c) for c in (self.directory.config(), config))
        for key, value in theirs.items():
            if value != ours[key]:
                raise RunError(
                    f"the warm-up of {self.directory.path} was made with {key}={_differing(value, ours[key])}; "
                    "give the same settings, or warm up anew"
                )

    def copy_into(self, checkpoints: Checkpoints, metrics: Path) -> dict[str, Any]:
        """Its weights and records for another run; returns its entry for the results."""
        assert self._entry is not None
        try:
            weights = files.read_safetensors(self._checkpoints.best(WARMUP))
            lines = (self.directory.path / metrics.name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"the warm-up of {self.directory.path} cannot be read ({error}); warm up anew") from error
        checkpoints.folder.mkdir(parents=True, exist_ok=True)
        own = {name: values for name, values in weights.items() if not name.startswith("classifier.")}  # of stage 2
        files.write_safetensors(checkpoints.best(WARMUP), own)
        files.write_text(metrics, "".join(f"{line}\n" for line in lines if _stage(line) == WARMUP))
        return self._entry


def _stage(line: str) -> str | None:
    """Of a record; None of one that a killed process did not finish."""
    try:
        return json.loads(line)["stage"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _differing(theirs: Any, ours: Any) -> Any:
    """The value itself, or of a section the first entries that differ."""
    if not isinstance(theirs, dict):
        return theirs
    return next({k: v} for k, v in theirs.items() if v != ours[k])
