"""Unique names for files and folders that are valid on every system."""

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
    """The valid file name that is closest to ``name``: never empty, hidden, or outside its folder.

    A name that is too long keeps its start and its suffix, with a hash of the full name between them.

    >>> [safe_name(n) for n in ("great tit", "a/b", "..", "", ".hidden", "con")]
    ['great tit', 'a_b', '_', '_', '_hidden', '_con']
    """
    name = _FORBIDDEN.sub("_", unicodedata.normalize("NFC", name)).strip().rstrip(".")
    name = re.sub(r"^\.+", "_", name) or "_"
    if _RESERVED.match(name):
        name = "_" + name
    if len(name.encode()) <= _MAX_BYTES:
        return name
    stem, suffix = split_suffix(name)
    end = f"~{hashlib.sha256(name.encode()).hexdigest()[:8]}{suffix}"
    return stem.encode()[: _MAX_BYTES - len(end.encode())].decode(errors="ignore") + end


def split_suffix(name: str) -> tuple[str, str]:
    """Stem and suffix; a suffix has at most five letters."""
    suffix = re.search(r"(?<=.)\.\w{1,5}$", name)
    return (name, "") if suffix is None else (name[: suffix.start()], suffix[0])


def folder_names(categories: Sequence[str]) -> list[str]:
    """A folder name for each category. All differ, also if upper and lower case are not distinguished."""
    return _make_unique([safe_name(name) for name in categories], str.casefold)


def file_names(paths: Sequence[str], *, by_stem: bool = False) -> list[str]:
    """A file name for each image, all for one folder.

    An image keeps its own name. Images of the same name in different folders get the names of their folders in front.
    With ``by_stem`` the names also differ without their suffix.
    """
    key = _stem if by_stem else str.casefold
    plain = [safe_name(PurePosixPath(path).name) for path in paths]
    counts = Counter(map(key, plain))
    parts = [[part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")] for path in paths]
    named = zip(plain, parts, strict=True)
    return _make_unique([n if counts[key(n)] == 1 else safe_name("__".join(folders)) for n, folders in named], key)


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.casefold()


def _make_unique(names: Sequence[str], key: Callable[[str], str]) -> list[str]:
    """Number the names whose ``key`` is taken already."""
    counts = Counter(map(key, names))
    taken = {k for k, n in counts.items() if n == 1}
    numbers: Counter[str] = Counter()
    result = []
    for name in names:
        chosen = name
        while counts[key(name)] > 1 and key(chosen) in taken:
            numbers[key(name)] += 1
            stem, suffix = split_suffix(name)
            chosen = f"{stem}-{numbers[key(name)] + 1}{suffix}"
        taken.add(key(chosen))
        result.append(chosen)
    return result
