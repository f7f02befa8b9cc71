"""Atomic writes: a file is written under a temporary name in the same folder, flushed to disk, then renamed.

Leftovers of killed processes are recognised by their temporary names. Tensors are stored with a checksum.
"""

import csv
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from promptcal.errors import shorten
from promptcal.runtime.free_memory import free_host_memory
from promptcal.runtime.reading import is_special

if TYPE_CHECKING:
    from torch import Tensor

_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
_ROWS_AT_ONCE = 1024  # of a CSV file


def temporary_mining_streams(path: Path) -> Path:
    """A unique temporary name in the same folder, which `is_temporary` recognises."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


def is_temporary(path: Path) -> bool:
    return _TEMPORARY_NAME.fullmatch(path.name) is not None


def write_with(path: Path, write: Callable[[Path], Any], *, keep_as: Path | None = None) -> None:
    """Let ``write`` write a temporary file, flush it, rename it to ``path``; ``keep_as`` keeps the previous file."""
    if is_special(path):
        raise OSError(errno.EINVAL, "it is a pipe or a device, which would be replaced", str(path))
    temporary = temporary_mining_streams(path)
    try:
        _fill(temporary, write)
        flush(temporary)
        if keep_as is not None and path.exists():
            write_with(keep_as, lambda copy: _link_or_copy(path, copy))
        temporary.replace(path)
        flush(path.parent)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _fill(temporary: Path, write: Callable[[Path], Any]) -> None:
    """Every content that is written passes through here, so that a test can make any of them fail."""
    write(temporary)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, again if another process, which has locked the run directory, took the copy for a leftover."""
    try:
        write_with(target, partial(shutil.copyfile, source))
    except FileNotFoundError:
        write_with(target, partial(shutil.copyfile, source))


def _link_or_copy(path: Path, target: Path) -> None:
    """A hard link to the file if the file system supports it, else a copy."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk (fsync)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if not path.is_dir():
            raise
        return  # this system cannot open folders, so it cannot flush them
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def entries_below(folder: Path) -> Iterator[Path]:
    """Everything below a folder, at any depth. Linked folders are not entered, and those that another process removes
    meanwhile are skipped."""
    first = os.fspath(folder)
    waiting = [first]
    while waiting:
        place = waiting.pop()
        try:
            opened = os.scandir(place)
        except FileNotFoundError:
            if place == first:
                raise
            continue
        with opened as entries:
            for entry in entries:
                yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes; no other process may be writing to the folder."""
    for path in [path for path in entries_below(folder) if is_temporary(path)]:
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it; `OSError` if it is nested too deeply."""
    try:
        shutil.rmtree(folder)
    except RecursionError as error:
        raise OSError(errno.ENAMETOOLONG, "it is nested too deeply; remove it", str(folder)) from error


def append_text(path: Path, text: str) -> None:
    """Append to a file and flush it to disk."""
    with _opened_in_place(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
        data = text.encode("utf-8")
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)


def truncate(path: Path, size: int) -> None:
    """Cut a file to ``size`` bytes, if it is longer."""
    with _opened_in_place(path, os.O_WRONLY) as descriptor:
        if size < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, size)


@contextmanager
def _opened_in_place(path: Path, flags: int) -> Iterator[int]:
    """A file that is changed in place, neither through a symbolic link nor through a hard link."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        check_only_name(descriptor, path)
        yield descriptor
    finally:
        os.close(descriptor)


def check_only_name(descriptor: int, path: Path | None = None) -> None:
    """Reject a file with a second name (hard link), under which it may be a file of another program."""
    if os.fstat(descriptor).st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to another file; remove it", None if path is None else str(path))


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it exists; `OSError` if it is nested too deeply."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except RecursionError as error:
        raise OSError(errno.ENAMETOOLONG, "it is nested too deeply", shorten(path)) from error


def is_below(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or in it, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_no_link(path: Path) -> None:
    """Reject a link at a place where a folder or a file of another library is written, which would follow it."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, which may lead to any place; remove it", str(path))


def write_folder(path: Path, fill: Callable[[Path], Any]) -> None:
    """Call ``fill`` with a temporary folder, then rename it to ``path``, which must be absent or an empty folder."""
    temporary = temporary_mining_streams(path.absolute())
    temporary.mkdir()
    try:
        fill(temporary)
        if path.is_dir():
            path.rmdir()
        temporary.rename(path)
        flush(path.absolute().parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def write_bytes(path: Path, data: bytes) -> None:
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    write_text(path, csv_text(header, rows))


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """`write_csv` for many rows, whose text is never in memory as a whole."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            _write_cells(file, header, rows)

    write_with(path, write)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO(newline="")
    _write_cells(text, header, rows)
    return text.getvalue()


def _write_cells(file: TextIO, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A carriage return, which a file name may have, ends a line unless it is quoted; the csv module does not quote it
    before Python 3.13."""
    waiting = itertools.chain([header], rows)
    while block := list(itertools.islice(waiting, _ROWS_AT_ONCE)):
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(block)
        if "\r" not in text.getvalue():  # as in nearly all files
            file.write(text.getvalue())
            continue
        plain = csv.writer(file, lineterminator="\n")
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in block:
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
            (quoted if has_return else plain).writerow(row)


def write_json(path: Path, value: Any) -> None:
    """Write standard JSON: numbers that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_safetensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write tensors with a checksum, which `read_safetensors` verifies."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}

    def write(temporary: Path) -> None:
        temporary.touch()
        permissions = temporary.stat().st_mode  # safetensors would make the file readable for its owner only
        with _as_os_error(temporary, SafetensorError):
            save_file(contiguous, temporary, {"sha256": tensors_digest(contiguous)})
        temporary.chmod(permissions)

    write_with(path, write)


def read_safetensors(path: Path) -> "dict[str, Tensor]":
    """The tensors of a file; `OSError` if it is absent, truncated, or its checksum does not match."""
    from safetensors import safe_open
    from safetensors.torch import load

    with _as_os_error(path, Exception):  # besides its own error, an unknown dtype or no memory
        with safe_open(path, "pt") as file:
            expected = (file.metadata() or {}).get("sha256")
        if path.stat().st_size > free_host_memory():
            raise OSError(errno.ENOMEM, "it is larger than the free memory", str(path))
        tensors = load(path.read_bytes())  # `get_tensor` never frees 64 bytes of each tensor (safetensors 0.8)
    if expected not in (None, tensors_digest(tensors)):  # None: written by another program
        raise OSError(errno.EIO, "checksum mismatch", str(path))
    return tensors


@contextmanager
def _as_os_error(path: Path, kind: type[Exception]) -> Iterator[None]:
    """Raise `OSError` instead of errors of another kind."""
    try:
        yield
    except OSError:
        raise
    except kind as error:
        raise OSError(errno.EIO, str(error) or type(error).__name__, str(path)) from error


def tensors_digest(tensors: "Mapping[str, Tensor]") -> str:
    """SHA-256 of names, shapes and values; the tensors are contiguous and on the CPU."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_torch(value: Any, path: Path) -> None:
    """`torch.save` that raises `OSError` for errors of the disk."""
    import torch

    try:
        with path.open("wb") as file:
            torch.save(value, file)
    except RuntimeError as error:  # PyTorch raises it for all file errors
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise cause or OSError(errno.EIO, str(error), str(path)) from error


def read_torch(path: Path) -> Any:
    """Read a file of `save_torch`; `OSError` if its checksum does not match, which `torch.load` does not check."""
    import torch

    with _as_os_error(path, Exception):  # damaged archives and pickles raise many kinds of errors
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise OSError(errno.EIO, f"checksum mismatch of {damaged}", str(path))
        return torch.load(path, map_location="cpu", weights_only=True)


def file_digest(path: Path) -> str:
    """SHA-256, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()
