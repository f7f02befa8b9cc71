"""Settings: their schema, the presets, and how the sources of settings are merged."""

from promptcal.config.layers import AUTO, Layers, MethodSettings, flatten, preset_names, validate
from promptcal.config.schema import Config, Section

__all__ = ["AUTO", "Config", "Layers", "MethodSettings", "Section", "flatten", "preset_names", "validate"]
