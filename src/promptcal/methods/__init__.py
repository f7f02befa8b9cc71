"""Methods of generalized category discovery as plug-ins (`base.Method`): settings, network, stages, assignment.

`METHODS` finds them by name. Importing this package imports neither a method nor PyTorch nor pydantic.
"""

from typing import TYPE_CHECKING, Any

from promptcal.methods.registry import METHODS, WITHOUT_LABELS, register_method

if TYPE_CHECKING:
    from promptcal.methods.configure import load_config, read_config, resolve

__all__ = ["METHODS", "WITHOUT_LABELS", "load_config", "read_config", "register_method", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from promptcal.methods import configure

    return getattr(configure, name)
