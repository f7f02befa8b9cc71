"""Find image files below a folder or by a glob pattern."""

import fnmatch
import itertools
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from promptcal.errors import DataError

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
    return sorted(_glob(folder, {(*pattern, "*") if pattern[-1] == "**" else pattern}, frozenset()))


def class_folder_labels(root: Path, names: Sequence[str]) -> list[str | None] | None:
    """The top-level folder of each image as its class; None for images in ``unlabelled/`` and in the root itself.

    The result is None unless an ``unlabelled`` (or ``unlabeled``) folder lies beside a folder with images.
    """
    if not any(entry.is_dir() and _is_unlabelled_folder(entry.name) for entry in _entries(root)):
        return None
    tops = [name.partition("/")[0] if "/" in name else None for name in names]
    classes = [None if top is None or _is_unlabelled_folder(top) else unicodedata.normalize("NFC", top) for top in tops]
    return classes if any(classes) else None


def _is_unlabelled_folder(name: str) -> bool:
    return name.casefold() in _UNLABELLED_FOLDERS


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read ({error.strerror}); check its permissions") from error


def _is_image(entry: os.DirEntry[str]) -> bool:
    """A file, a link to a file, or a dangling link (unreadable, reported later); never a pipe, which could block."""
    if Path(entry.name).suffix.lower() not in SUFFIXES | HEIC_SUFFIXES:
        return False
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))


def _glob(folder: Path, patterns: set[tuple[str, ...]], ancestors: frozenset[str]) -> Iterator[Path]:
    """Images that match one of the patterns, each given by its parts."""
    real = os.path.realpath(folder)
    if real in ancestors:
        return
    patterns = patterns | {tuple(itertools.dropwhile("**".__eq__, parts)) for parts in patterns}  # ** = no folder
    for entry in _entries(folder):
        matching = [parts for parts in patterns if _matches(entry.name, parts[0])]
        if entry.is_dir():
            deeper = {parts if parts[0] == "**" else parts[1:] for parts in matching} - {()}
            if deeper:
                yield from _glob(Path(entry.path), deeper, ancestors | {real})
        elif any(len(parts) == 1 for parts in matching) and _is_image(entry):
            yield Path(entry.path)


def _matches(name: str, part: str) -> bool:
    """Whether one part of a pattern matches a name. Only a part with a leading dot matches hidden names."""
    if name.startswith(".") and not part.startswith("."):
        return False
    return part in ("*", "**") or fnmatch.fnmatch(unicodedata.normalize("NFC", name), part)
