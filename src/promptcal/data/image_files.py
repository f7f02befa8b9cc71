"""Find image files below a folder or by a glob pattern."""

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
    """Whether a path is a glob pattern; an existing file or folder with brackets in its name is not."""
    return bool(_WILDCARD.search(str(path))) and not path.exists()


def split_pattern(pattern: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder before the first wildcard, and the remaining parts of the pattern."""
    parts = Path(os.path.expanduser(pattern)).parts
    first = next(i for i, part in enumerate(parts) if _WILDCARD.search(part))
    return Path(*parts[:first]), parts[first:]


def find_images(folder: Path) -> list[Path]:
    """Images in a folder and its sub-folders, sorted. Links are followed, but never in a cycle."""
    return sorted(_walk(folder, frozenset()))


def find_matching_images(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Images below a folder that match the parts of a glob pattern, sorted; ``**`` matches any number of folders."""
    parts = [*parts, "*"] if parts[-1] == "**" else list(parts)
    return sorted(set(_glob(folder, [unicodedata.normalize("NFC", part) for part in parts], frozenset())))


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
    if Path(entry.name).suffix.lower() not in SUFFIXES:
        return False
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))


def _walk(folder: Path, ancestors: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in ancestors:
        return
    for entry in _entries(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), ancestors | {real})
        elif _is_image(entry):
            yield Path(entry.path)


def _glob(folder: Path, parts: list[str], ancestors: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in ancestors:
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _glob(folder, rest, ancestors)
    for entry in _entries(folder):
        if entry.name.startswith(".") and not first.startswith("."):
            continue
        if first == "**":
            if entry.is_dir():
                yield from _glob(Path(entry.path), parts, ancestors | {real})
        elif fnmatch.fnmatch(unicodedata.normalize("NFC", entry.name), first):
            if rest and entry.is_dir():
                yield from _glob(Path(entry.path), rest, ancestors | {real})
            elif not rest and not entry.is_dir() and _is_image(entry):
                yield Path(entry.path)
