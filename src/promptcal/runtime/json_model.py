"""JSON files of a run directory: each has one typed model, which reads and writes it, and format numbers."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from promptcal._version import __version__
from promptcal.errors import RunError
from promptcal.runtime import files
from promptcal.runtime.reading import MAX_JSON, read_bytes

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


_LARGE = 2**24  # bytes; a file with more is checked before it is validated
_MOST_KEYS = 100_000  # of one object
_MOST_LISTED = 100  # errors
_CAN_FAIL_FAST = tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 8)


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for inner in schema.values():
            _fail_fast(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _fail_fast(inner)


class StrictModel(BaseModel):
    """A frozen model of what a file or a page holds. The first wrong item of a list is its only error: pydantic would
    collect millions of them, in gigabytes of memory."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        schema = handler(source)
        if _CAN_FAIL_FAST:
            _fail_fast(schema)
        return schema


class JSONModel(StrictModel):
    """A frozen model that is stored in one file. Numbers that are not finite are written as null."""

    remedy: ClassVar[str] = "fit again with --overwrite"  # if the file is damaged

    @classmethod
    def read(cls, file: Path) -> Self:
        """The model in ``file``; a `RunError` if the file is missing, truncated or holds anything else."""
        try:
            content = read_bytes(file, MAX_JSON)
            if _NUL.search(content):  # no path and no name has one
                raise damaged(file, "a text with a NUL character", cls.remedy)
            return cls.model_validate_json(checked_size(content))
        except OSError as error:
            raise RunError(f"{file} cannot be read ({error.strerror}); {cls.remedy}") from error
        except ValidationError as error:
            raise damaged(file, first_problem(error), cls.remedy) from error
        except (ValueError, RecursionError) as error:
            raise damaged(file, error, cls.remedy) from error

    def write(self, file: Path) -> None:
        files.write_json(file, self.model_dump())


def checked_size(content: bytes) -> bytes:
    """The JSON; a `ValueError` if an object has so many keys that the errors of them would fill the memory."""
    if len(content) > _LARGE:
        json.loads(content, object_pairs_hook=_check_keys)
    return content


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > _MOST_KEYS:
        raise ValueError(f"an object with over {_MOST_KEYS:,} keys")


def first_problem(error: ValidationError) -> str:
    if error.error_count() > _MOST_LISTED:  # their text is made much faster than the list of them
        where, what = str(error).split("\n", 3)[1:3]
        return f"{where}: {what.strip().partition(' [type=')[0]}"
    first: Any = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}".removeprefix(": ")


def damaged(file: Path, reason: object, remedy: str = JSONModel.remedy) -> RunError:
    return RunError(f"{file} is damaged ({' '.join(str(reason).split())[:200]}); {remedy}")


def check_format(found: Any, newest: int, oldest: int, what: str, made_by: str = "") -> None:
    """Reject a format that this version cannot read: missing, invalid, too old or too new."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        reason = "no format number" if found is None else f"an invalid format number {str(found)[:40]!r}"
        raise RunError(f"{what} has {reason}, so it is damaged or not written by promptcal; fit again with --overwrite")
    by = f" (written by promptcal {made_by})" if made_by else ""
    reason = f"{what} has format {found}{by} and promptcal {__version__} reads"
    if found > newest:
        raise RunError(f"{reason} up to {newest}; upgrade promptcal")
    if found < oldest:
        raise RunError(f"{reason} {oldest} and later; use that version to read it, or fit again")
