"""JSON files of a run directory: each has one typed model, which reads and writes it."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from promptcal.errors import RunError
from promptcal.runtime import files


class JSONModel(BaseModel):
    """A frozen model that is stored in one file. Numbers that are not finite are written as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def read(cls, file: Path) -> Self:
        """The model in ``file``; a `RunError` if the file is missing, truncated or holds anything else."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except OSError as error:
            raise RunError(f"{file} cannot be read ({error.strerror}); fit again with --overwrite") from error
        except ValidationError as error:
            raise damaged(file, first_problem(error)) from error

    def write(self, file: Path) -> None:
        files.write_json(file, self.model_dump())


def first_problem(error: ValidationError) -> str:
    first: Any = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}".removeprefix(": ")


def damaged(file: Path, reason: object) -> RunError:
    return RunError(f"{file} is damaged ({' '.join(str(reason).split())[:200]}); fit again with --overwrite")
