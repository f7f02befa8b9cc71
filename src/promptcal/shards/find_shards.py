"""The input shards of a source: tar and parquet files as they are, folders and lists of images divided."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcal.data.feature_files import check_id_texts
from promptcal.data.image_files import HEIC_SUFFIXES, SUFFIXES, walk_images
from promptcal.errors import DataError
from promptcal.runtime import files
from promptcal.shards import locations
from promptcal.shards.manifest import InputKind, InputShard, ShardPlan
from promptcal.shards.shard_folder import ShardFolder

DEFAULT_SIZE = 10_000  # images of a shard of a folder or list
_KNOWN = "tar, parquet, a list of images (.txt), an image, or a folder of such files"
_LONGEST_LINE = 2**16  # bytes, of a list
_LONGEST_STEM = 160  # bytes; a file system allows 255 for the whole name of a file
_KINDS: dict[str, InputKind] = {".tar": "tar", ".parquet": "parquet", ".txt": "list"}


def is_sharded(source: str | os.PathLike[str], *, as_csv: bool = False) -> bool:
    """Whether a source is read shard by shard: anything but a folder, a pattern or a file of images.

    ``as_csv``: a single parquet file of features can also be read as a whole.
    """
    location = str(source)
    if as_csv and os.path.isfile(location) and locations.suffix(location) == ".parquet":
        return False
    if locations.is_url(location) or ShardFolder.is_at(location) or locations.suffix(location) in _KINDS:
        return True
    return os.path.isdir(location) and bool(_direct_files(location)) and not _has_images(location)


@dataclass(frozen=True)
class NameList:
    """Names of images, which are read once and may be very many; they are relative to ``root``."""

    name: str
    root: str
    names: Iterator[str]


def expand(source: Sequence[str], *, embeddings: bool = False) -> tuple[list[InputShard], list[NameList]]:
    """The tar and parquet files of all locations, and the folders and lists of images."""
    shards: dict[str, InputShard] = {}
    lists: list[NameList] = []
    single: list[str] = []
    for location in map(locations.absolute, source):
        if _is_folder(location) and not _shard_files(location):
            lists.append(NameList(Path(location).name, location, _names_in(location)))
            continue
        for file in _files_of(location):
            kind = _KINDS.get(locations.suffix(file))
            if kind is None and locations.suffix(file) in SUFFIXES | HEIC_SUFFIXES:
                single.append(file)
            elif kind is None:
                raise DataError(f"{file} is no source of images; give {_KNOWN}")
            elif kind == "list":
                lists.append(NameList(locations.stem(file), _folder_of(file), _lines(file)))
            else:
                name = f"{_safe(locations.stem(file))}-{_digest(file)}"
                shards[name] = InputShard(name=name, kind="embeddings" if embeddings else kind, location=file)
    if single:
        lists.append(NameList("images", "", iter(single)))
    if embeddings and (lists or any(locations.suffix(shard.location) != ".parquet" for shard in shards.values())):
        raise DataError(f"{', '.join(source)} has no embeddings; give a folder of parquet files with embeddings")
    return [shards[name] for name in sorted(shards)], lists


def find_shards(
    source: Sequence[str], folder: ShardFolder, previous: ShardPlan | None, *, size: int, embeddings: bool
) -> list[InputShard]:
    """The shards of all locations in ``source``, sorted by name.

    A list is divided once: its shards are kept in ``previous``. Tar and parquet files may be added later, and those
    that were removed stay in the plan.
    """
    shards, lists = expand(source, embeddings=embeddings)
    found = {} if previous is None else {shard.name: shard for shard in previous.shards}
    found |= {shard.name: shard for shard in shards}
    if previous is None:
        divided = (shard for number, names in enumerate(lists) for shard in _divide(number, names, folder, size))
        found |= {shard.name: shard for shard in divided}
    if not found:
        raise DataError(f"{', '.join(source)} contains no images; give {_KNOWN}")
    return [found[name] for name in sorted(found)]


def _files_of(location: str) -> list[str]:
    if ShardFolder.is_at(location):
        folder = ShardFolder(location)
        return [str(folder.file(shard.name)) for shard in folder.manifest().shards]
    if locations.is_pattern(location):
        files = locations.matching(location)
        if not files:
            raise DataError(f"nothing matches {location}; check the pattern")
        return files
    if _is_folder(location):
        return _shard_files(location)
    if not locations.is_url(location) and not os.path.isfile(location):
        raise DataError(f"{location} does not exist; check the path")
    return [location]


def _is_folder(location: str) -> bool:
    if locations.is_url(location):
        return not locations.is_pattern(location) and not locations.suffix(location)
    return os.path.isdir(location)


def _shard_files(folder: str) -> list[str]:
    """The tar or parquet files directly in a folder of no images; a `DataError` if it has both."""
    if ShardFolder.is_at(folder):
        return [folder]
    found = _direct_files(folder)
    if found and not locations.is_url(folder) and _has_images(folder):
        pattern = f"{folder}/*{locations.suffix(found[0])}"
        raise DataError(
            f"{folder} has images and also {os.path.basename(found[0])}; give the pattern '{pattern}', or a folder "
            "with images only"
        )
    return found


def _has_images(folder: str) -> bool:
    return next(walk_images(Path(folder)), None) is not None


def _direct_files(folder: str) -> list[str]:
    """Tar files, or else parquet files."""
    found = locations.entries(folder)
    for suffix in (".tar", ".parquet"):
        chosen = [file for file in found if locations.suffix(file) == suffix]
        if chosen:
            return chosen
    return []


def _names_in(folder: str) -> Iterator[str]:
    if locations.is_url(folder):
        suffixes = SUFFIXES | HEIC_SUFFIXES
        return (name for name in locations.walk(folder) if locations.suffix(name) in suffixes)
    return (os.path.relpath(file, folder).replace(os.sep, "/") for file in walk_images(Path(folder)))


def _folder_of(file: str) -> str:
    return locations.beside(file, "").rstrip("/")


def _lines(file: str) -> Iterator[str]:
    with locations.opened(file) as opened:
        while line := opened.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise DataError(f"{file} has a line of over {_LONGEST_LINE:,} bytes; write one path in each line")
            try:
                text = line.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file} is not text ({error.reason}); write one path in each line, as UTF-8"
                ) from error
            if text:
                yield text


def _divide(number: int, names: NameList, folder: ShardFolder, size: int) -> list[InputShard]:
    """Copy a list into the folder of shards, so that it does not change, and note where each shard begins."""
    folder.lists_folder.mkdir(exist_ok=True)
    copy = folder.lists_folder / f"{number}.txt"
    starts: list[int] = []
    end = 0

    def write(temporary: Path) -> None:
        nonlocal end
        with temporary.open("wb") as file:
            for i, line in enumerate(names.names):
                if "\n" in line or "\r" in line:
                    raise DataError(f"the image name {line!a} has a line end; rename the file")
                check_id_texts([line], names.name)
                if i % size == 0:
                    starts.append(end)
                end += file.write(f"{line}\n".encode())

    files.write_with(copy, write)
    if not starts:
        return []
    stem = f"{_safe(names.name)}-{_digest(f'{number} {names.root}')}"
    return [
        InputShard(name=f"{stem}-{i:06d}", kind="list", location=str(copy), first=first, last=last, root=names.root)
        for i, (first, last) in enumerate(zip(starts, [*starts[1:], end], strict=True))
    ]


def _safe(name: str) -> str:
    text = re.sub(r"[^\w.-]+", "_", name).strip(".")[:80]
    return text.encode()[:_LONGEST_STEM].decode("utf-8", "ignore") or "shard"


def _digest(text: str) -> str:
    """Tells shards of the same name in different folders apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
