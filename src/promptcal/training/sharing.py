"""Stage 1 of one run for many: ablations of stage 2 need not warm up again, and differ in nothing else."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from promptcal import files
from promptcal.config import Config
from promptcal.errors import RunError
from promptcal.run import RunDirectory
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
        results = self.directory.results_file
        self._results = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        self._checkpoints = Checkpoints(self.directory.checkpoints_folder)
        if WARMUP not in self._results or not self._checkpoints.best(WARMUP).exists():
            raise RunError(f"{self.directory.path} has no finished warm-up to share; let it train that far first")

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
        checkpoints.folder.mkdir(parents=True, exist_ok=True)
        files.write_with(
            checkpoints.best(WARMUP), lambda temporary: _copy(self._checkpoints.best(WARMUP), Path(temporary))
        )
        lines = (self.directory.path / metrics.name).read_text(encoding="utf-8").splitlines()
        records = [line for line in lines if json.loads(line)["stage"] == WARMUP]
        files.write_text(metrics, "".join(f"{line}\n" for line in records))
        return {key: self._results[WARMUP][key] for key in ("best_epoch", "epochs", "score")}


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def _differing(theirs: Any, ours: Any) -> Any:
    """The value itself, or of a section the first entries that differ."""
    if not isinstance(theirs, dict):
        return theirs
    return next({k: v} for k, v in theirs.items() if v != ours[k])
