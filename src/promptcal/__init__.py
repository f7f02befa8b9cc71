"""promptcal: sort images into the categories you know and the ones you do not know yet.

Generalized category discovery with PromptCAL (CVPR 2023) and other methods. `fit` learns the categories, `predict`
assigns new images, `evaluate` scores a run, `export` writes it for other programs; `PromptCAL` is a scikit-learn
estimator. Everything is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from promptcal._version import __version__
from promptcal.errors import (
    ConfigError,
    DataError,
    Interrupted,
    LabelError,
    PromptCALError,
    RunError,
    WeightsError,
)

if TYPE_CHECKING:
    from promptcal.api import (
        benchmark,
        check,
        datasets,
        demo,
        estimate_classes,
        evaluate,
        export,
        fit,
        make_figure,
        make_report,
        predict,
        table,
    )
    from promptcal.estimator import PromptCAL
    from promptcal.run import Assignments, Run

_LAZY = {
    **dict.fromkeys(
        (
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
        ),
        "promptcal.api",
    ),
    "PromptCAL": "promptcal.estimator",
    "Assignments": "promptcal.run",
    "Run": "promptcal.run",
}

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


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
