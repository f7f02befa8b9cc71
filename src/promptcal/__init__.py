"""promptcal: sort images into the categories you know and the ones you do not know yet.

Generalized category discovery with PromptCAL (CVPR 2023) and other methods. `fit` learns the categories, `predict`
assigns new images, `evaluate` scores a run, `export` writes it for other programs; `PromptCAL` is a scikit-learn
estimator. Everything is imported when it is first used; `__init__.pyi` declares it for editors and type checkers.
"""

import gc
from importlib import import_module
from types import ModuleType
from typing import Any

from promptcal.runtime.threads import let_idle_threads_sleep

let_idle_threads_sleep()  # before anything imports PyTorch

_NAMES = {  # by module
    "_version": "__version__",
    "api": "benchmark check cluster datasets demo embed estimate_classes evaluate export fit make_figure make_report "
    "name predict predict_shards table",
    "errors": "ArgumentError ConfigError DataError Interrupted LabelError MissingPackageError PromptCALError RunError "
    "TryAgainError WeightsError",
    "estimator": "PromptCAL",
    "feature_estimator": "SemiSupervisedDiscovery",
    "run": "Assignments Run",
}
_MODULE_OF = {name: f"promptcal.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "api":
        return _import("promptcal.api")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import(_MODULE_OF[name]), name)


def _import(module: str) -> ModuleType:
    """Import a module without garbage collection, which takes a quarter of the time and finds nothing to free."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
