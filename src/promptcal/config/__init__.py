"""Settings: their schema, the presets, and how the sources of settings are merged.

The names below are imported when first used: names of presets are listed without the schema.
"""

from typing import TYPE_CHECKING

from promptcal.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from promptcal.config.layers import AUTO, Layers, MethodSettings, flatten, validate
    from promptcal.config.schema import Config, Section

__all__ = ["AUTO", "Config", "Layers", "MethodSettings", "Section", "flatten", "validate"]

__getattr__ = lazy_names(
    __name__, {"layers": "AUTO Layers MethodSettings flatten validate", "schema": "Config Section"}
)
