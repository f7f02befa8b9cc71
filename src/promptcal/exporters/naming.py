"""Names that are safe as files and folders on any system, and apart from each other."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

_MAX_BYTES = 120
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_RESERVED = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def safe_name(name: str) -> str:
    """A file name as near to ``name`` as every file system allows; never empty, hidden or a way out of the folder.

    >>> [safe_name(n) for n in ("great tit", "a/b", "..", "", ".hidden", "con")]
    ['great tit', 'a_b', '_', '_', '_hidden', '_con']
    """
    name = _FORBIDDEN.sub("_", unicodedata.normalize("NFC", name)).strip().rstrip(".")
    name = re.sub(r"^\.+", "_", name) or "_"
    if _RESERVED.match(name):
        name = "_" + name
    return _shortened(name)


def _shortened(name: str) -> str:
    """A name that is too long keeps its start and its ending, with a digest of the whole between them."""
    if len(name.encode()) <= _MAX_BYTES:
        return name
    stem, suffix = split_suffix(name)
    mark = f"~{hashlib.sha256(name.encode()).hexdigest()[:8]}{suffix}"
    return stem.encode()[: _MAX_BYTES - len(mark.encode())].decode(errors="ignore") + mark


def split_suffix(name: str) -> tuple[str, str]:
    """Stem and a suffix of at most a few letters, as image files have."""
    found = re.search(r"(?<=.)\.\w{1,5}$", name)
    return (name, "") if found is None else (name[: found.start()], found[0])


def folder_names(categories: Sequence[str]) -> list[str]:
    """A folder for each category, none the same as another even where upper and lower case are one."""
    return _apart([safe_name(name) for name in categories], _whole)


def file_names(paths: Sequence[str], *, by_stem: bool = False) -> list[str]:
    """A file name for each image, to lie in one folder.

    An image keeps its own name; those of the same name in different folders are told apart by their folders. With
    ``by_stem`` names differ before the suffix, too.
    """
    key = _stem if by_stem else _whole
    plain = [safe_name(PurePosixPath(path).name) for path in paths]
    counts = Counter(key(name) for name in plain)
    parts = [[part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")] for path in paths]
    return _apart(
        [
            name if counts[key(name)] == 1 else safe_name("__".join(folders))
            for name, folders in zip(plain, parts, strict=True)
        ],
        key,
    )


def _whole(name: str) -> str:
    return name.casefold()


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.casefold()


def _apart(names: Sequence[str], key: Callable[[str], str]) -> list[str]:
    """Numbers on those that are still the same, by ``key``, as one before them."""
    counts = Counter(map(key, names))
    taken = {k for k, n in counts.items() if n == 1}
    result = []
    for name in names:
        chosen, number = name, 1
        while counts[key(name)] > 1 and key(chosen) in taken:
            number += 1
            stem, suffix = split_suffix(name)
            chosen = f"{stem}-{number}{suffix}"
        taken.add(key(chosen))
        result.append(chosen)
    return result
