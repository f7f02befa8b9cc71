"""Settings: their schema, the presets, and how the sources of settings are merged."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptcal.config.layers import AUTO, Layers, MethodSettings, flatten, validate
    from promptcal.config.schema import Config, Section

__all__ = ["AUTO", "Config", "Layers", "MethodSettings", "Section", "flatten", "validate"]


def __getattr__(name: str) -> Any:
    """Import the schema when it is first used: names of presets are listed without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from promptcal.config import layers, schema

    return getattr(schema if hasattr(schema, name) else layers, name)
