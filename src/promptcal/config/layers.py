"""The sources of settings, and which one wins.

From lowest to highest priority: defaults, method, preset, variant, method's values for that preset, protocol, file,
values, overrides (``a.b=value``).
"""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol

from pydantic import BaseModel, ValidationError

from promptcal.config.names import PRESETS_FOLDER, preset_names
from promptcal.config.renamed import renamed_setting
from promptcal.config.schema import Config
from promptcal.errors import ConfigError
from promptcal.runtime.reading import MAX_YAML, read_bytes
from promptcal.runtime.safe_yaml import read_yaml

AUTO: Final = "auto"
Preset = str | Mapping[str, Any] | None


class MethodSettings(Protocol):
    """The settings of a method: its config class, and values that it changes.

    ``presets`` has the method's own values under "", over which every preset wins, and under a preset's name values
    that win over that preset. ``variants`` maps names to settings. ``published`` are settings of the published
    protocol.
    """

    @property
    def name(self) -> str: ...

    @property
    def config_class(self) -> type[Config]: ...

    @property
    def presets(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def variants(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def published(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Layers:
    """The sources of a configuration: a preset (by name, or its settings), then settings from lowest to highest."""

    preset: Preset
    given: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(
        cls,
        *,
        preset: Preset = None,
        file: str | PathLike[str] | None = None,
        values: Mapping[str, Any] | None = None,
        overrides: Iterable[str] = (),
    ) -> "Layers":
        if isinstance(preset, str) and preset not in preset_names():
            raise ConfigError(f"there is no preset {preset!r}; choose one of {', '.join(preset_names())}")
        from_file = [] if file is None else [_read_file(Path(file))]
        return cls(preset, (*from_file, values or {}, *map(_parse_override, overrides)))

    def on_top_of(self, settings: Mapping[str, Any]) -> "Layers":
        """The same sources with other settings below them; the preset is still the lowest."""
        return Layers(self.preset, (settings, *self.given))

    @property
    def method(self) -> str:
        """The name of the chosen method."""
        name = self.chosen("method", Config.model_fields["method"].default)
        if not isinstance(name, str):
            raise ConfigError(f"the setting 'method' is wrong: input should be a name, not {reprlib.repr(name)}")
        return name

    @property
    def is_published(self) -> bool:
        """Whether the published protocol is chosen, which trains on all labels."""
        return self.chosen("protocol", "default") == "published"

    def merged(self, method: MethodSettings) -> dict[str, Any]:
        """All settings for a method in one mapping; ``n_classes`` may be "auto"."""
        variant, protocol = (self.chosen(key, Config.model_fields[key].default) for key in ("variant", "protocol"))
        from_variant = _variant_settings(variant, method)
        self._check_same_as_saved("variant", variant)
        self._check_same_as_saved("protocol", protocol)
        sections = method.config_class.model_fields
        merged: dict[str, Any] = {}
        shipped = (
            method.presets.get("", {}),
            {key: value for key, value in preset_settings(self.preset).items() if key in sections},
            from_variant,
            method.presets.get(self.preset, {}) if isinstance(self.preset, str) else {},
            method.published if protocol == "published" else {},
        )
        for layer in (*shipped, *self.given):
            if "n_classes" in layer:
                merged.pop("n_classes_estimated", None)
            merge_into(merged, layer)
        return merged

    def chosen(self, key: str, default: Any) -> Any:
        """The value of a setting outside the sections; ``default`` if nothing names it."""
        layers = [preset_settings(self.preset), *self.given]
        return next((layer[key] for layer in reversed(layers) if key in layer), default)

    def names_setting(self, *path: str) -> bool:
        """Whether the preset or a given layer names a setting, such as ``"model", "backbone"``."""
        return any(".".join(path) in flatten(layer) for layer in (preset_settings(self.preset), *self.given))

    def _check_same_as_saved(self, key: str, value: Any) -> None:
        """A saved configuration lists all values, so another variant or protocol would change nothing."""
        for layer in self.given:
            if layer.get(key, value) != value:
                raise ConfigError(
                    f"a configuration with {key}={layer[key]} cannot be changed to {key}={value}, because it states "
                    "all of its settings; start from a preset, or change single settings with --set"
                )


def preset_settings(preset: Preset) -> Mapping[str, Any]:
    """The settings of a preset; it may have sections of several methods."""
    if not isinstance(preset, str):
        return preset or {}
    return _read_preset(preset)


@cache  # a configuration looks a preset up several times, and a table makes hundreds of configurations
def _read_preset(name: str) -> Mapping[str, Any]:
    return parse_yaml((PRESETS_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), f"the preset {name}")


def validate(values: Mapping[str, Any], method: MethodSettings) -> Config:
    """A method's config from plain values, or a `ConfigError` that says which setting is wrong and how."""
    if values.get("n_classes") == AUTO:
        raise ConfigError("n_classes=auto needs images to estimate it; use it with fit, or give a number")
    try:
        config = method.config_class.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(e, method) for e in error.errors())) from error
    _variant_settings(config.variant, method)
    return config


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        parsed = read_yaml(text)
    except ValueError as error:  # also for a date such as 2024-99-99
        raise ConfigError(f"{source} is not valid YAML ({error}); correct it") from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise ConfigError(f"{source} must be a YAML mapping of settings, not a {type(parsed).__name__}")
    return parsed


def merge_into(settings: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Settings are one section deep: sections are merged, everything else is replaced."""
    for key, value in layer.items():
        present = settings.get(key)
        both_sections = isinstance(value, Mapping) and isinstance(present, Mapping)
        settings[key] = {**present, **value} if both_sections else value  # type: ignore[dict-item]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``a.b`` keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _variant_settings(variant: Any, method: MethodSettings) -> Mapping[str, Any]:
    if not isinstance(variant, str) or variant not in method.variants:
        choices = ", ".join(method.variants)
        raise ConfigError(f"the method {method.name} has no variant {reprlib.repr(variant)}; choose one of {choices}")
    return method.variants[variant]


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"the config file {path} does not exist; check the path")
    try:
        return parse_yaml(read_bytes(path, MAX_YAML).decode("utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"the config file {path} cannot be read ({error.strerror}); give another one") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config file {path} is not text; give a YAML file") from error


def _parse_override(override: str) -> dict[str, Any]:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes key=value, such as affinity.k=10, not {override!r}")
    nested: Any = parse_yaml(f"value: {value}", f"the override {override!r}").get("value")
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    return nested


def _explain(error: Any, method: MethodSettings) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if not key and error["type"] == "value_error":  # an error of several settings together
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return _explain_unknown(key, method)
    if error["type"] == "missing":
        auto = ", a number or auto," if key == "n_classes" else ""
        return f"the setting {key!r} is missing; give --{key.replace('_', '-')}{auto} or set it in the config"
    given = "" if isinstance(error["input"], dict) else f", not {reprlib.repr(error['input'])}"
    message = error["msg"].removeprefix("Value error, ")
    return f"the setting {key!r} is wrong: {message[0].lower()}{message[1:]}{given}"


def _explain_unknown(key: str, method: MethodSettings) -> str:
    renamed = renamed_setting(key)
    if renamed is not None:
        return renamed
    close = difflib.get_close_matches(key, _all_keys(method.config_class), n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"the method {method.name} has no setting {key!r}{hint}"


def _all_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _all_keys(field.annotation, f"{prefix}{name}.")
    return keys
