"""A run directory: its files, their typed models, and inference with a finished run.

The names below are imported when first used: what is stored of a run can be read without PyTorch.
"""

from typing import TYPE_CHECKING

from promptcal.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from promptcal.run.assignments import Assignments as Assignments
    from promptcal.run.directory import RunDirectory as RunDirectory
    from promptcal.run.inference import Run as Run
    from promptcal.run.info import RunInfo as RunInfo
    from promptcal.run.results import RunResults, Scores, StageResult  # noqa: F401
    from promptcal.run.stored_run import StoredRun as StoredRun

__getattr__ = lazy_names(
    __name__,
    {  # by module
        "assignments": "Assignments",
        "directory": "RunDirectory",
        "inference": "Run",
        "info": "RunInfo",
        "results": "RunResults Scores StageResult",
        "stored_run": "StoredRun",
    },
)
