"""Names of a package that are imported when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. ``names`` has, by module of the package, names that are separated by spaces."""
    module_of = {name: f"{package}.{module}" for module, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return get
