"""Reuse the first stage of another run: ablations of stage 2 then differ in nothing else."""

from os import PathLike
from pathlib import Path
from typing import Any

from promptcal.errors import RunError
from promptcal.methods import METHODS
from promptcal.methods.base import Method
from promptcal.run.directory import RunDirectory
from promptcal.run.epoch_records import stage_of
from promptcal.run.results import StageResult
from promptcal.runtime import files
from promptcal.training.checkpoints import Checkpoints


class SharedStage:
    """The finished first stage of another run with the same images, labels and settings."""

    def __init__(self, run: str | PathLike[str], stage: str) -> None:
        self.directory = RunDirectory(run)
        self.name = stage
        self._checkpoints = Checkpoints(self.directory.checkpoints_folder)
        results = self.directory.results()
        if results is None or stage not in results.stages or not self._checkpoints.best(stage).exists():
            raise RunError(f"{self.directory.path} has no finished stage {stage} to reuse; let it train that far first")
        self.result: StageResult = results.stages[stage].model_copy(update={"accuracy": None})

    def check(self, method: Method[Any], fingerprint: str) -> None:
        """Reject a run with other images, labels or settings of the first stage."""
        if self.directory.info().fingerprint != fingerprint:
            raise RunError(f"{self.directory.path} has other images or labels; reuse the stage of another run")
        other_config = self.directory.config()
        theirs = METHODS[other_config.method](other_config).first_stage_settings() or {}
        ours = method.first_stage_settings() or {}
        for key, value in theirs.items():
            if value != ours.get(key):
                raise RunError(
                    f"{self.directory.path} trained its stage {self.name} with {key}={_difference(value, ours[key])}; "
                    "give the same settings, or train the stage again"
                )

    def copy_into(self, checkpoints: Checkpoints, metrics: Path) -> StageResult:
        """Copy its weights and records to another run; returns its entry for the results."""
        try:
            weights = files.read_safetensors(self._checkpoints.best(self.name))
            lines = (self.directory.path / metrics.name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"the stage {self.name} of {self.directory.path} cannot be read ({error})") from error
        checkpoints.folder.mkdir(parents=True, exist_ok=True)
        method = METHODS[self.directory.config().method]
        files.write_safetensors(checkpoints.best(self.name), method.first_stage_weights(weights))
        files.write_text(metrics, "".join(f"{line}\n" for line in lines if stage_of(line) == self.name))
        return self.result


def _difference(theirs: Any, ours: Any) -> Any:
    """The value itself; of a section, the first entry that differs."""
    if not isinstance(theirs, dict):
        return theirs
    return next({k: v} for k, v in theirs.items() if v != ours[k])
