"""promptcal: sort images into the categories you know and the ones you do not know yet.

Generalized category discovery by PromptCAL (CVPR 2023). The verbs are `fit`, `predict`, `evaluate`, `export`, `check`,
`estimate_classes`, `datasets`, `benchmark`, `table` and `demo`; `PromptCAL` is the same as a scikit-learn estimator.
"""

from promptcal._version import __version__
from promptcal.api import benchmark, check, datasets, demo, estimate_classes, evaluate, export, fit, predict, table
from promptcal.api import figure as make_figure
from promptcal.api import report as make_report
from promptcal.errors import (
    ConfigError,
    DataError,
    Interrupted,
    LabelError,
    PromptCALError,
    RunError,
    WeightsError,
)
from promptcal.estimator import PromptCAL
from promptcal.run.inference import Assignments, Run

__all__ = [
    "Assignments",
    "ConfigError",
    "DataError",
    "Interrupted",
    "LabelError",
    "PromptCAL",
    "PromptCALError",
    "Run",
    "RunError",
    "WeightsError",
    "__version__",
    "benchmark",
    "check",
    "datasets",
    "demo",
    "estimate_classes",
    "evaluate",
    "export",
    "fit",
    "make_figure",
    "make_report",
    "predict",
    "table",
]
