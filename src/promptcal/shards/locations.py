"""Files and URLs. Local paths are opened directly, anything with :// through fsspec (s3://, gs://, https://, ...)."""

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from promptcal.errors import DataError, MissingPackageError, PromptCALError, TryAgainError, shorten
from promptcal.runtime.reading import check_is_file, read_image

_WILDCARDS = frozenset("*?[")


def is_url(location: str) -> bool:
    return "://" in location


def is_pattern(location: str) -> bool:
    """Whether it is a glob pattern; an existing file with brackets in its name is not."""
    return bool(_WILDCARDS & set(location)) and (is_url(location) or not os.path.exists(location))


def absolute(location: str) -> str:
    return location if is_url(location) else os.path.abspath(os.path.expanduser(location))


def suffix(location: str) -> str:
    return Path(location.partition("?")[0] if is_url(location) else location).suffix.lower()


def beside(location: str, name: str) -> str:
    """A name that is relative to the folder of ``location``."""
    if is_url(name) or os.path.isabs(name):
        return name
    folder = location.rpartition("/")[0] if is_url(location) else os.path.dirname(location)
    return f"{folder}/{name}"


@contextmanager
def opened(location: str) -> Iterator[BinaryIO]:
    """The file, opened to be read."""
    with _accessing(location), _open(location) as file:
        yield file


@contextmanager
def _accessing(location: str) -> Iterator[None]:
    """A `DataError` if the file or folder cannot be read, and a `TryAgainError` if a remote one cannot be reached."""
    try:
        yield
    except PromptCALError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{location} does not exist any more; restore it, then run the same command again") from error
    except Exception as error:  # of a remote file system, any exception
        if not is_url(location) and not isinstance(error, OSError):
            raise
        reason = shorten(getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__, 200)
        if is_url(location) and isinstance(error, OSError) and not isinstance(error, PermissionError):
            raise TryAgainError(f"{location} cannot be read ({reason}); run the same command again later") from error
        raise DataError(
            f"{location} cannot be read ({reason}); check its permissions, then run the same command again"
        ) from error


def read_location(location: str) -> bytes:
    """The whole content of an image. It may raise any exception."""
    with _open(location) as file:
        return read_image(file)


def matching(pattern: str) -> list[str]:
    """The locations that match a glob pattern, sorted."""
    if not is_url(pattern):
        return sorted(os.path.abspath(path) for path in glob.glob(os.path.expanduser(pattern), recursive=True))
    protocol, _, rest = pattern.partition("://")
    with _accessing(pattern):
        found = _file_system(pattern).glob(rest)
    return sorted(f"{protocol}://{str(path).removeprefix(f'{protocol}://')}" for path in found)


def entries(folder: str) -> list[str]:
    """The files directly in a folder."""
    if is_url(folder):
        return matching(f"{folder.rstrip('/')}/*")
    return sorted(entry.path for entry in os.scandir(folder) if not entry.name.startswith("."))


def walk(folder: str) -> Iterator[str]:
    """The names of all files below a remote folder, relative to it, in the order of its file system."""
    with _accessing(folder):
        files = _file_system(folder)
        root = files._strip_protocol(folder)
        for path, _, names in files.walk(root, on_error="raise"):
            below = path[len(root) :].strip("/")
            yield from (f"{below}/{name}".lstrip("/") for name in sorted(names))


def _open(location: str) -> Any:
    if not is_url(location):
        check_is_file(location)
        return open(location, "rb")
    import fsspec

    _file_system(location)
    return fsspec.open(location, "rb")


def _file_system(location: str) -> Any:
    import fsspec

    try:
        return fsspec.url_to_fs(location)[0]
    except ImportError as error:
        raise MissingPackageError(f"{location} cannot be read ({shorten(error, 200)}); install that package") from error
    except ValueError as error:
        raise DataError(f"{location} cannot be read ({shorten(error, 200)}); check the URL") from error
