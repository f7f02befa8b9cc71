"""promptcal: sort images into the categories you know and the ones you do not know yet.

Generalized category discovery with PromptCAL (CVPR 2023) and other methods. `fit` learns the categories, `predict`
assigns new images, `evaluate` scores a run, `export` writes it for other programs; `PromptCAL` is a scikit-learn
estimator. Everything is imported when it is first used; `__init__.pyi` declares it for editors and type checkers.
"""

from importlib import import_module
from typing import Any

_NAMES = {  # by module
    "_version": "__version__",
    "api": "benchmark check datasets demo estimate_classes evaluate export fit make_figure make_report name predict "
    "table",
    "errors": "ArgumentError ConfigError DataError Interrupted LabelError MissingPackageError PromptCALError RunError "
    "WeightsError",
    "estimator": "PromptCAL",
    "run": "Assignments Run",
}
_MODULE_OF = {name: f"promptcal.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
