"""Image files found on disk: those below a folder, and those a glob pattern names."""

import fnmatch
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from promptcal.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
_UNLABELLED_FOLDERS = frozenset({"unlabelled", "unlabeled"})
_WILDCARD = re.compile(r"[*?[]")


def is_pattern(path: Path) -> bool:
    """Whether a path is a glob pattern and not a file or folder that merely has brackets in its name."""
    return bool(_WILDCARD.search(str(path))) and not path.exists()


def fixed_part(pattern: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder a pattern starts from, and the parts of the pattern below it."""
    parts = Path(os.path.expanduser(pattern)).parts
    first = next(i for i, part in enumerate(parts) if _WILDCARD.search(part))
    return Path(*parts[:first]), parts[first:]


def image_files(folder: Path) -> list[Path]:
    """Images in a folder and those below it, sorted; links are followed but never in a circle."""
    return sorted(_below(folder, frozenset()))


def matching_files(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Images below a folder whose path fits the parts of a glob pattern, sorted; ``**`` is any number of folders."""
    parts = [*parts, "*"] if parts[-1] == "**" else list(parts)
    return sorted(set(_matching(folder, [unicodedata.normalize("NFC", part) for part in parts], frozenset())))


def folder_classes(root: Path, names: Sequence[str]) -> list[str | None] | None:
    """The top-level folder of each image as its class, None in ``unlabelled/`` and in the root itself.

    There are none at all unless an ``unlabelled`` (or ``unlabeled``) folder lies beside a folder with images.
    """
    if not any(entry.is_dir() and _holds_unlabelled(entry.name) for entry in _entries(root)):
        return None
    tops = [name.partition("/")[0] if "/" in name else None for name in names]
    classes = [None if top is None or _holds_unlabelled(top) else unicodedata.normalize("NFC", top) for top in tops]
    return classes if any(classes) else None


def _holds_unlabelled(folder: str) -> bool:
    return folder.casefold() in _UNLABELLED_FOLDERS


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read ({error.strerror}); check its permissions") from error


def _is_image(entry: os.DirEntry[str]) -> bool:
    """A file, or a link to one, or to nothing, which is told as unreadable; never a pipe, whose end may not come."""
    if Path(entry.name).suffix.lower() not in SUFFIXES:
        return False
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))


def _below(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    """Never back into a folder ``above``."""
    real = os.path.realpath(folder)
    if real in above:
        return
    for entry in _entries(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _below(Path(entry.path), above | {real})
        elif _is_image(entry):
            yield Path(entry.path)


def _matching(folder: Path, parts: list[str], above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in above:
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _matching(folder, rest, above)
    for entry in _entries(folder):
        if entry.name.startswith(".") and not first.startswith("."):
            continue
        if first == "**":
            if entry.is_dir():
                yield from _matching(Path(entry.path), parts, above | {real})
        elif fnmatch.fnmatch(unicodedata.normalize("NFC", entry.name), first):
            if rest and entry.is_dir():
                yield from _matching(Path(entry.path), rest, above | {real})
            elif not rest and not entry.is_dir() and _is_image(entry):
                yield Path(entry.path)
