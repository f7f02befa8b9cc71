"""JSON files of a run directory: each has one typed model, which reads and writes it, and format numbers."""

import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from promptcal._version import __version__
from promptcal.errors import RunError
from promptcal.runtime import files
from promptcal.runtime.reading import MAX_JSON, read_bytes

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class JSONModel(BaseModel):
    """A frozen model that is stored in one file. Numbers that are not finite are written as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    remedy: ClassVar[str] = "fit again with --overwrite"  # if the file is damaged

    @classmethod
    def read(cls, file: Path) -> Self:
        """The model in ``file``; a `RunError` if the file is missing, truncated or holds anything else."""
        try:
            content = read_bytes(file, MAX_JSON)
            if _NUL.search(content):  # no path and no name has one
                raise damaged(file, "a text with a NUL character", cls.remedy)
            return cls.model_validate_json(content)
        except OSError as error:
            raise RunError(f"{file} cannot be read ({error.strerror}); {cls.remedy}") from error
        except ValidationError as error:
            raise damaged(file, first_problem(error), cls.remedy) from error

    def write(self, file: Path) -> None:
        files.write_json(file, self.model_dump())


def first_problem(error: ValidationError) -> str:
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
