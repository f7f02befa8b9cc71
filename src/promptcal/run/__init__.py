"""A run directory: its files, their typed models, and inference with a finished run."""

from promptcal.run.assignments import Assignments
from promptcal.run.directory import RunDirectory
from promptcal.run.inference import Run
from promptcal.run.info import RunInfo
from promptcal.run.results import RunResults, Scores, StageResult

__all__ = ["Assignments", "Run", "RunDirectory", "RunInfo", "RunResults", "Scores", "StageResult"]
