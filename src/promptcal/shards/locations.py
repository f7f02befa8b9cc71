"""Files and URLs. Local paths are opened directly, anything with :// through fsspec (s3://, gs://, https://, ...)."""

import errno
import glob
import itertools
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from promptcal.errors import DataError, MissingPackageError, PromptCALError, TryAgainError, shorten
from promptcal.runtime.reading import check_is_file, read_image

_WILDCARDS = frozenset("*?[")
_URL_PATTERN = re.compile(r"\*|\[[^\[\]/]+\]")  # a question mark begins the query
_ATTEMPTS = 3  # to read an image at a URL
_WAIT = 0.5  # seconds before the second attempt, and twice as many before each later one
_CONNECTION = re.compile(
    "[Cc]onnect|Timeout|HTTPClient|Payload|IncompleteRead"
)  # in the names of errors of file systems


def is_url(location: str) -> bool:
    return "://" in location


def is_pattern(location: str) -> bool:
    """Whether it is a glob pattern; an existing file with brackets in its name is not.

    Of a web address, only the path counts: the host may be a number in brackets, and a signature may be anything.
    """
    if is_url(location):
        path = _without_query(location)
        return _URL_PATTERN.search(path.split("/", 3)[-1] if _is_web(location) else path) is not None
    return bool(_WILDCARDS & set(location)) and not os.path.exists(location)


def _is_web(location: str) -> bool:
    return location.lower().startswith(("http://", "https://"))


def _without_query(location: str) -> str:
    return location.partition("?")[0] if _is_web(location) else location


def absolute(location: str) -> str:
    return location if is_url(location) else os.path.abspath(os.path.expanduser(location))


def suffix(location: str) -> str:
    return Path(location.partition("?")[0] if is_url(location) else location).suffix.lower()


def stem(location: str) -> str:
    """The name of the file without its suffix."""
    return Path(location.partition("?")[0] if is_url(location) else location).stem


def beside(location: str, name: str) -> str:
    """A name that is relative to the folder of ``location``."""
    if is_url(name) or os.path.isabs(name):
        return name
    folder = _without_query(location).rpartition("/")[0] if is_url(location) else os.path.dirname(location)
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
    except Exception as error:  # of a remote file system, any exception
        if is_url(location) and may_pass(error):
            raise _try_again(location, error) from error
        if isinstance(error, FileNotFoundError):
            raise DataError(
                f"{location} does not exist any more; restore it, then run the same command again"
            ) from error
        if not is_url(location) and not isinstance(error, OSError):
            raise
        raise DataError(
            f"{location} cannot be read ({_reason(error)}); check its permissions, then run the same command again"
        ) from error


def may_pass(error: BaseException) -> bool:
    """Whether a remote file may be there, but its server cannot be reached or does not answer at this moment.

    A host that has no address is taken for a wrong name. The file system of web addresses raises a
    ``FileNotFoundError`` from any other one.
    """
    if isinstance(error, FileNotFoundError):
        return error.__cause__ is not None and may_pass(error.__cause__)
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    codes = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    status = next((code for code in codes if isinstance(code, int)), None)
    if status is not None:
        return status in (408, 425, 429) or status >= 500
    if isinstance(error, OSError):
        return error.errno not in (socket.EAI_NONAME, errno.EINVAL)
    return any(_CONNECTION.search(kind.__name__) for kind in type(error).__mro__)


def _try_again(location: str, error: BaseException) -> TryAgainError:
    return TryAgainError(f"{location} cannot be read ({_reason(error)}); run the same command again later")


def _reason(error: BaseException) -> str:
    return shorten(getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__, 200)


def read_location(location: str) -> bytes:
    """The whole content of an image. It may raise any exception.

    A remote one is read again after a short time if it cannot be reached. At last, that is a `TryAgainError`.
    """
    for attempt in itertools.count(1):
        try:
            with _open(location) as file:
                return read_image(file)
        except Exception as error:
            if not is_url(location) or not may_pass(error):
                raise
            if attempt == _ATTEMPTS:
                raise _try_again(location, error) from error
        time.sleep(_WAIT * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def matching(pattern: str) -> list[str]:
    """The locations that match a glob pattern, sorted."""
    if not is_url(pattern):
        return sorted(os.path.abspath(path) for path in glob.glob(os.path.expanduser(pattern), recursive=True))
    protocol = pattern.partition("://")[0]
    with _accessing(pattern):
        files, path = _file_system(pattern)
        found = files.glob(path)
    return sorted(f"{protocol}://{str(path).removeprefix(f'{protocol}://')}" for path in found)


def entries(folder: str) -> list[str]:
    """The files directly in a folder."""
    if is_url(folder):
        return matching(f"{folder.rstrip('/')}/*")
    return sorted(entry.path for entry in os.scandir(folder) if not entry.name.startswith("."))


def walk(folder: str) -> Iterator[str]:
    """The names of all files below a remote folder, relative to it, in the order of its file system."""
    with _accessing(folder):
        files, root = _file_system(folder)
        for path, _, names in files.walk(root, on_error="raise"):
            below = path[len(root) :].strip("/")
            yield from (f"{below}/{name}".lstrip("/") for name in sorted(names))


def _open(location: str) -> Any:
    if not is_url(location):
        check_is_file(location)
        return open(location, "rb")
    import fsspec

    _file_system(location)
    read = location.rpartition("::")[2]  # the last file system of a chain, such as simplecache::file:///a.tar
    if read.startswith(("file://", "local://")):
        check_is_file(fsspec.implementations.local.LocalFileSystem._strip_protocol(read))
    return fsspec.open(location, "rb")


def _file_system(location: str) -> tuple[Any, str]:
    """The file system of a URL, and the path that it uses. That of web addresses uses the whole URL."""
    import fsspec

    try:
        return fsspec.url_to_fs(location)
    except ImportError as error:
        raise MissingPackageError(f"{location} cannot be read ({shorten(error, 200)}); install that package") from error
    except ValueError as error:
        raise DataError(f"{location} cannot be read ({shorten(error, 200)}); check the URL") from error
