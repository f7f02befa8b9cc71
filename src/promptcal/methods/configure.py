"""The configuration of a run: settings merged from their sources, checked by the chosen method's config class."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from promptcal.config import Config, Layers, validate
from promptcal.config.layers import Preset, merge_into, parse_yaml
from promptcal.methods import METHODS, WITHOUT_TRAINING

_END_MARKER = "..."


def load_config(
    *,
    preset: Preset = None,
    file: str | PathLike[str] | None = None,
    values: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> Config:
    """A config from a preset, a YAML file, ``values`` and ``a.b=value`` overrides; later sources win.

    >>> load_config(preset="quick", values={"n_classes": 10}, overrides=["method=gcd"]).model.prompts
    0
    """
    return resolve(Layers.of(preset=preset, file=file, values=values, overrides=overrides))


def resolve(layers: Layers) -> Config:
    method = METHODS[layers.method]
    return validate(layers.merged(method), method)


def read_config(text: str) -> Config:
    """A config that `Config.to_yaml` wrote; a `ValueError` if the text was truncated."""
    if text.rstrip().rpartition("\n")[2] != _END_MARKER:
        raise ValueError("it was truncated: its end marker is missing")
    values = parse_yaml(text, "config.yaml")
    return validate(values, METHODS[Layers.of(values=values).method])


def settings_for(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings ``values`` for another method: without the sections of the present one, with its own values."""
    chosen = METHODS[method]
    settings = {key: value for key, value in values.items() if key in chosen.config_class.model_fields}
    merge_into(settings, {"method": method, "variant": "official", **chosen.presets.get("", {})})
    return settings


def without_training(config: Config) -> Config:
    """The config of the first result of a fit with ``config``."""
    return validate(settings_for(WITHOUT_TRAINING, config.model_dump()), METHODS[WITHOUT_TRAINING])
