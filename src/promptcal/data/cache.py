"""Decoded images in a memory-mapped file, for sets larger than memory and for later runs on the same images."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from promptcal.data.images import ImageSet
from promptcal.data.store import ImageStore, check_readable, planar, readable_images, stored_size
from promptcal.errors import DataError
from promptcal.runtime.distributed import ALONE, Group
from promptcal.runtime.files import make_folder, write_json, write_with
from promptcal.runtime.locking import try_lock
from promptcal.runtime.reading import is_special

_VERSION = 2
_TIME_TO_LOCK = 10.0  # seconds that a writer has to lock its new temporary file
Decoded = tuple[ImageStore, list[int], list[tuple[str, str]]]


def cache_key(images: ImageSet, shorter_side: int) -> str:
    """A hash of everything that the decoded pixels depend on, so that a cache is never out of date."""
    digest = hashlib.sha256(f"{_VERSION}:{shorter_side}".encode())
    for i, name in enumerate(images.names):
        digest.update(f"\0{name}\0{images.content_hash(i)}".encode())
    return digest.hexdigest()[:32]


def decode_to_file(
    images: ImageSet,
    shorter_side: int,
    folder: Path,
    *,
    skip_unreadable: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
    group: Group = ALONE,
) -> Decoded:
    """Like `store.decode`, with the pixels in a mapped file in ``folder``. An intact file is reused.

    In a group, the first process of each machine writes the file, using all cores; the others map it.
    """
    keys = group.all_gather_object(cache_key(images, shorter_side) if group.is_local_first else None)
    if len(set(keys) - {None}) > 1:
        raise DataError("the images differ between the machines; give all machines the same images")
    key = keys[group.rank_info.rank - group.rank_info.local_rank]
    pixels_file, index_file = folder / f"{key}.pixels", folder / f"{key}.json"
    found = _load(pixels_file, index_file, images.names) if group.is_local_first else None
    if found is None and group.is_local_first:
        make_folder(folder)
        _remove_leftovers(folder)
        _write(images, shorter_side, pixels_file, index_file, on_progress)
    group.wait()
    found = found or _load(pixels_file, index_file, images.names)
    if found is None:
        raise DataError(f"the cache of decoded images in {folder} cannot be read back; check its disk")
    on_progress(len(images))
    _, kept, faults = found
    check_readable(faults, len(kept), skip_unreadable)
    return found


def _write(
    images: ImageSet, shorter_side: int, pixels_file: Path, index_file: Path, on_progress: Callable[[int], None]
) -> None:
    """Write the pixels, then the index. A cache with an index is therefore complete."""
    sizes: list[list[int]] = []
    kept: list[int] = []
    faults: list[tuple[str, str]] = []
    digest = hashlib.sha256()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            try_lock(file.fileno())  # shows other processes that the file is in use
            side = stored_size(images, shorter_side)
            for image in readable_images(images, side, kept, faults, on_progress, cores=os.cpu_count()):
                data = planar(image)
                file.write(data.data)
                digest.update(data.data)
                sizes.append(list(image.shape[:2]))

    write_with(pixels_file, write)
    index = {"format": _VERSION, "sizes": sizes, "kept": kept, "faults": faults, "sha256": digest.hexdigest()}
    write_json(index_file, index)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes: files that are not locked although their writer had time to."""
    for path in folder.glob(".*.pixels.*.tmp"):
        if is_special(path):
            continue
        with suppress(OSError), path.open("rb+") as file:  # its writer may rename it, or be another user
            if time.time() - os.fstat(file.fileno()).st_mtime > _TIME_TO_LOCK and try_lock(file.fileno()):
                path.unlink(missing_ok=True)


def _load(pixels_file: Path, index_file: Path, names: list[str]) -> Decoded | None:
    """The cache; None if it is absent, damaged or has another format."""
    if is_special(pixels_file) or is_special(index_file):
        return None
    try:
        index = json.loads(index_file.read_text(encoding="utf-8"))
        sizes, kept, faults = index["sizes"], index["kept"], [(name, reason) for name, reason in index["faults"]]
        if index["format"] != _VERSION or not _is_consistent(sizes, kept, faults, names):
            return None
        total = sum(3 * height * width for height, width in sizes)
        if pixels_file.stat().st_size != total:
            return None
        # copy-on-write: a tensor must be writable, but the file must not change
        mapped = np.memmap(pixels_file, dtype=np.uint8, mode="c") if total else np.empty(0, dtype=np.uint8)
        if hashlib.sha256(mapped.data).hexdigest() != index["sha256"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return ImageStore.from_buffer(torch.from_numpy(mapped), sizes), kept, faults


def _is_consistent(sizes: list[list[int]], kept: list[int], faults: list[tuple[str, str]], names: list[str]) -> bool:
    """Whether an index describes these images: each has a size, in order, or a fault."""
    positions = set(kept)
    left_out = [name for i, name in enumerate(names) if i not in positions]
    if not all(isinstance(side, int) and side > 0 for size in sizes for side in size) or kept != sorted(kept):
        return False
    return len(sizes) == len(kept) == len(names) - len(left_out) and [name for name, _ in faults] == left_out
