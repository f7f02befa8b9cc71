"""Find image files below a folder or by a glob pattern."""

import errno
import fnmatch
import itertools
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from promptcal.errors import DataError, shorten

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
HEIC_SUFFIXES = frozenset({".heic", ".heif"})
_UNLABELLED_FOLDERS = frozenset({"unlabelled", "unlabeled"})
_WILDCARD = re.compile(r"[*?[]")


def is_pattern(path: Path) -> bool:
    """Whether a path is a glob pattern; an existing file or folder with brackets in its name is not."""
    return bool(_WILDCARD.search(str(path))) and not path.exists()


def split_pattern(pattern: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder before the first wildcard, and the remaining parts of the pattern."""
    parts = Path(os.path.expanduser(pattern)).parts
    first = next(i for i, part in enumerate(parts) if _WILDCARD.search(part))
    return Path(*parts[:first]), parts[first:]


def find_images(folder: Path, parts: Sequence[str] = ("**",)) -> list[Path]:
    """Images below a folder that match the parts of a glob pattern, sorted; by default all of them.

    HEIC files are among them, whether or not they can be read here. ``**`` matches any number of folders. Links are
    followed, but never in a cycle.
    """
    pattern = tuple(unicodedata.normalize("NFC", part) for part in parts)
    return sorted(_glob(folder, {(*pattern, "*") if pattern[-1] == "**" else pattern}))


def walk_images(folder: Path) -> Iterator[Path]:
    """The same images in the same order, one by one: only the names of one folder and its parents are in memory."""
    waiting: list[Iterator[tuple[os.DirEntry[str], frozenset[tuple[int, int]]]]] = [
        _sorted_entries(folder, frozenset())
    ]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
        elif _is_folder(found[0]):
            waiting.append(_sorted_entries(found[0].path, found[1]))
        elif _is_image(found[0]):
            yield Path(found[0].path)


def _sorted_entries(
    folder: str | Path, ancestors: frozenset[tuple[int, int]]
) -> Iterator[tuple[os.DirEntry[str], frozenset[tuple[int, int]]]]:
    """What a folder contains except hidden names, with the folders that contain it; nothing in a cycle of links."""
    place = os.stat(folder)
    here = place.st_dev, place.st_ino
    if here not in ancestors:
        for entry in sorted(_entries(folder), key=lambda entry: entry.name):
            if not entry.name.startswith("."):
                yield entry, ancestors | {here}


def class_folder_labels(root: Path, names: Sequence[str]) -> list[str | None] | None:
    """The top-level folder of each image as its class; None for images in ``unlabelled/`` and in the root itself.

    The result is None unless an ``unlabelled`` (or ``unlabeled``) folder lies beside a folder with images.
    """
    if not any(_is_folder(entry) and _is_unlabelled_folder(entry.name) for entry in _entries(root)):
        return None
    tops = [name.partition("/")[0] if "/" in name else None for name in names]
    classes = [None if top is None or _is_unlabelled_folder(top) else unicodedata.normalize("NFC", top) for top in tops]
    return classes if any(classes) else None


def _is_unlabelled_folder(name: str) -> bool:
    return name.casefold() in _UNLABELLED_FOLDERS


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        remedy = "move its images" if error.errno == errno.ENAMETOOLONG else "check its permissions"
        raise DataError(f"the folder {shorten(folder, 200)} cannot be read ({error.strerror}); {remedy}") from error


def _is_image(entry: os.DirEntry[str]) -> bool:
    """A file, a link to a file, or a dangling link (unreadable, reported later); never a pipe, which could block."""
    if Path(entry.name).suffix.lower() not in SUFFIXES | HEIC_SUFFIXES:
        return False
    return (entry.is_symlink() and not os.path.exists(entry.path)) or entry.is_file()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _glob(root: Path, patterns: set[tuple[str, ...]]) -> Iterator[Path]:
    """Images that match one of the patterns, each given by its parts; in no particular order."""
    waiting = [(os.fspath(root), patterns, frozenset[tuple[int, int]]())]
    while waiting:  # without recursion, because folders can be nested deeper than Python's stack
        folder, patterns, ancestors = waiting.pop()
        entries = _entries(folder)
        found = os.stat(folder)
        here = found.st_dev, found.st_ino
        if here in ancestors:
            continue
        patterns = patterns | {tuple(itertools.dropwhile("**".__eq__, parts)) for parts in patterns}  # ** = no folder
        for entry in entries:
            matching = [parts for parts in patterns if _matches(entry.name, parts[0])]
            if _is_folder(entry):
                deeper = {parts if parts[0] == "**" else parts[1:] for parts in matching} - {()}
                if deeper:
                    waiting.append((entry.path, deeper, ancestors | {here}))
            elif any(len(parts) == 1 for parts in matching) and _is_image(entry):
                yield Path(entry.path)


def _matches(name: str, part: str) -> bool:
    """Whether one part of a pattern matches a name. Only a part with a leading dot matches hidden names."""
    if name.startswith(".") and not part.startswith("."):
        return False
    return part in ("*", "**") or fnmatch.fnmatch(unicodedata.normalize("NFC", name), part)
