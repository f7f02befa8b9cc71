"""Plug-ins by name: built-in ones, and those of other packages (entry points)."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from promptcal.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Named things of one ``kind``. Listing the names imports nothing; looking one up imports its module.

    ``built_in`` maps names to "module:attribute" or to the things themselves. Other packages declare entry points of
    the form "module:attribute" in ``group``, or call `register`. ``unlisted`` are built-in things that a user does not
    choose by name.
    """

    def __init__(
        self, kind: str, group: str, built_in: Mapping[str, str | T], unlisted: Mapping[str, str | T] | None = None
    ) -> None:
        self.kind = kind
        self.group = group
        self._built_in = dict(built_in)
        self._unlisted = dict(unlisted or {})
        self._registered: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        """Add ``item`` under ``name``; registering it again replaces it."""
        self._registered[name] = item
        return item

    def names(self) -> list[str]:
        """All names: built-in ones first, in their order, then the others sorted."""
        others = sorted({*self._registered, *entry_points_of(self.group)} - {*self._built_in, *self._unlisted})
        return [*self._built_in, *others]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __getitem__(self, name: str) -> T:
        if name not in self._registered:
            self._registered[name] = self._load(name)
        return self._registered[name]

    def _load(self, name: str) -> T:
        if name in self._built_in or name in self._unlisted:
            item = self._unlisted[name] if name in self._unlisted else self._built_in[name]
            return EntryPoint(name, item, self.group).load() if isinstance(item, str) else item
        found = entry_points_of(self.group).get(name)
        if found is None:
            raise ConfigError(f"there is no {self.kind} {name!r}; choose one of {', '.join(self.names())}")
        try:
            return found.load()
        except Exception as error:  # code of another package may fail in any way
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"the {self.kind} {name!r} cannot be loaded from {found.value} ({reason}); "
                "repair or uninstall that package"
            ) from error


@cache
def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """The entry points that installed packages declare in a group, by name."""
    return {point.name: point for point in entry_points(group=group)}
