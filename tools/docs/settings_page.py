"""The reference page of the settings, made from the schema, the methods and the presets."""

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from promptcal.config import Config, Section
from promptcal.config.names import PRESETS_FOLDER, preset_names
from promptcal.methods import METHODS, OF_FEATURES

INTRODUCTION = """# Settings

Put settings into a YAML file (`--config FILE`), or set one with `--set affinity.k=10`. An unknown setting is an error.
The run directory has all of them in `config.yaml`.

The sources, from lowest to highest priority: the defaults below, the method's own values, the preset, the variant, the
method's values for this preset, the protocol, your file, the options of the command, `--set`. `promptcal fit` also sets
`clustering.readout=head`, `selection.keep=better`, and, if you choose no preset, the variant `recommended` and a DINOv2
backbone.

"""
TRAINED = tuple(name for name in METHODS.names() if METHODS[name].trains)
PROMPTCAL = ("promptcal", "promptcal-warmup")
CONTRASTIVE = (*PROMPTCAL, "gcd", "simgcd")
BY_CLUSTERING = (*PROMPTCAL, "gcd", "kmeans", "semi-supervised-kmeans", "frozen", OF_FEATURES)
READOUT = (*PROMPTCAL, "gcd", "frozen", OF_FEATURES)

# Which methods read a setting of the common sections; those that are not listed are read by all. A slow test compares
# this with what fits read.
USED_BY: dict[str, tuple[str, ...]] = {
    "model.head_hidden": (*CONTRASTIVE, "uno"),
    "model.head_bottleneck": (*CONTRASTIVE, "uno"),
    "model.head_prototypes": (*PROMPTCAL, "gcd"),
    "data.generic_images": PROMPTCAL,
    "data.sampling": TRAINED,
    "loss.alpha": CONTRASTIVE,
    "loss.beta": ("promptcal",),
    "loss.gamma": PROMPTCAL,
    "loss.self_temperature": CONTRASTIVE,
    "loss.supervised_temperature": CONTRASTIVE,
    "loss.affinity_temperature": BY_CLUSTERING,
    "optim.epochs": tuple(name for name in TRAINED if name not in PROMPTCAL),
    **{f"optim.{name}": TRAINED for name in ("lr", "min_lr", "momentum", "weight_decay", "warmup_epochs", "schedule")},
    "optim.milestones": TRAINED,
    "clustering.readout": READOUT,
    "clustering.prior": READOUT,
    **{f"clustering.{name}": BY_CLUSTERING for name in ("max_iter", "tol", "max_points_per_cluster")},
    **{f"selection.{name}": TRAINED for name in ("validate_every", "n_init", "max_images")},
}
GROUPS = {TRAINED: "all that train", CONTRASTIVE: "promptcal, gcd, simgcd", PROMPTCAL: "promptcal"}


def page() -> str:
    """The page: a table for each section, then the values of variants, methods and presets."""
    common = [("Run", "", Config)]
    common += [(name, name, section) for name, section in sections_of(Config)]
    parts = [INTRODUCTION, *(_section(title, prefix, kind) for title, prefix, kind in common)]
    for name, kind, methods in method_sections():
        parts.append(_section(name, name, kind, methods))
    return "\n".join([*parts, _variants(), _methods(), _presets()])


def sections_of(config: type[Config]) -> list[tuple[str, type[Section]]]:
    """The sections of a config class, by name."""
    fields = config.model_fields.items()
    return [
        (name, kind)
        for name, field in fields
        if isinstance(kind := field.annotation, type) and issubclass(kind, Section)
    ]


def method_sections() -> Iterator[tuple[str, type[Section], tuple[str, ...]]]:
    """Name, class and methods of each section that a method adds."""
    found: dict[str, tuple[type[Section], list[str]]] = {}
    for method in (*METHODS.names(), OF_FEATURES):
        for name, kind in sections_of(METHODS[method].config_class):
            if name not in Config.model_fields:
                found.setdefault(name, (kind, []))[1].append(method)
    for name, (kind, methods) in found.items():
        yield name, kind, tuple(methods)


def settings() -> dict[str, FieldInfo]:
    """Every setting with its field, by its name in `--set`."""
    found = {name: field for name, field in Config.model_fields.items() if name not in dict(sections_of(Config))}
    all_sections = [*sections_of(Config), *((name, kind) for name, kind, _ in method_sections())]
    return found | {
        f"{section}.{name}": field for section, kind in all_sections for name, field in kind.model_fields.items()
    }


def _section(title: str, prefix: str, kind: type[Section], methods: tuple[str, ...] | None = None) -> str:
    text = "" if prefix == "" else " ".join((kind.__doc__ or "").split())
    rows = [
        f"| `{key}` | {_default(field)} | {_values(field)} | {field.description} | {_used_by(key, methods)} |"
        for name, field in kind.model_fields.items()
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, Section))
        for key in [f"{prefix}.{name}" if prefix else name]
    ]
    head = "| setting | default | values | meaning | methods |\n|---|---|---|---|---|\n"
    return (
        f"## {title} {{ #{prefix or 'run'} }}\n\n{text}\n\n{head}"
        + "\n".join(row.replace("<", "&lt;") for row in rows)
        + "\n"
    )


def _used_by(key: str, methods: tuple[str, ...] | None) -> str:
    found = methods or USED_BY.get(key)
    return "all" if found is None else GROUPS.get(found, ", ".join(found))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None else f"`{_text(value)}`"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _values(field: FieldInfo) -> str:
    """The values that a setting takes."""
    kinds = [kind for kind in (get_args(field.annotation) or (field.annotation,)) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    if get_origin(field.annotation) is tuple:
        return "a list of numbers"
    names = {int: "whole number", float: "number", str: "text", bool: "true, false"}
    (kind,) = kinds
    low, high = "", ""
    for bound in field.metadata:
        match bound:
            case Ge(ge=value):
                low = f"from {_number(value)}"
            case Gt(gt=value):
                low = f"above {_number(value)}"
            case Le(le=value):
                high = f"to {_number(value)}"
            case Lt(lt=value):
                high = f"and below {_number(value)}"
    return " ".join(filter(None, (names[kind], low, high)))


def _number(value: Any) -> str:
    if value == 2**63:
        return "2^63"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _variants() -> str:
    variants = METHODS["promptcal"].variants
    rows = [f"| `{name}` | {_listed(values) or _VARIANT_NOTES[name]} |" for name, values in variants.items()]
    return (
        "## Variants of PromptCAL {#variants}\n\n`variant=NAME`, such as `--set variant=paper`.\n\n"
        "| variant | values |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


_VARIANT_NOTES = {
    "official": "the details of the published release",
    "paper": "the details of the paper's text where the release differs",
}


def _methods() -> str:
    rows = [
        f"| `{name}` | {_listed(METHODS[name].presets.get('', {})) or 'the defaults'} |" for name in METHODS.names()
    ]
    return (
        "## Values of the methods {#values-of-the-methods}\n\nA preset may change them.\n\n"
        "| method | values |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _presets() -> str:
    rows = []
    for name in preset_names():
        values = yaml.safe_load((PRESETS_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")) or {}
        rows.append(f"| `{name}` | {_listed(values)} |")
    return (
        "## Presets {#presets}\n\n`--preset NAME`. A benchmark uses the preset of its name.\n\n"
        "| preset | values |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _listed(values: Mapping[str, Any], prefix: str = "") -> str:
    parts = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            parts.append(_listed(value, f"{prefix}{key}."))
        else:
            parts.append(f"`{prefix}{key}={'none' if value is None else _text(value)}`")
    return ", ".join(filter(None, parts))
