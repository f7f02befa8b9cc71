"""`metrics.jsonl`: one record for each epoch."""

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

from promptcal.errors import RunError
from promptcal.runtime.json_model import JSONModel, first_problem
from promptcal.runtime.reading import MAX_JSON, read_bytes


class EpochRecord(JSONModel):
    """One line: the stage, and numbers by name (epoch, losses, statistics), None where a number is not finite."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int | float | None]

    stage: str


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of a run; none if there is no such file."""
    if not file.is_file():
        return []
    try:
        lines = read_bytes(file, MAX_JSON).decode("utf-8").splitlines()
        return [EpochRecord.model_validate_json(line).model_dump() for line in lines]
    except ValidationError as error:
        raise RunError(f"{file} is damaged ({first_problem(error)}); delete it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is damaged ({error}); delete it") from error


def stage_of(line: str) -> str | None:
    """The stage of a record; None for a line that a killed process did not finish."""
    try:
        return EpochRecord.model_validate_json(line).stage
    except ValidationError:
        return None
