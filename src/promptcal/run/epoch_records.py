"""`metrics.jsonl`: one record for each epoch."""

import json
from pathlib import Path
from typing import Any

from promptcal.errors import RunError


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of a run, each with a ``stage`` and numbers (or None); none if there is no such file."""
    if not file.is_file():
        return []
    try:
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file} is damaged ({error}); delete it") from error
    if not all(map(_is_record, records)):
        raise RunError(f"{file} is damaged (an epoch without a stage, or values that are not numbers); delete it")
    return records


def stage_of(line: str) -> str | None:
    """The stage of a record; None for a line that a killed process did not finish."""
    try:
        return json.loads(line)["stage"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and isinstance(record.get("stage"), str)
        and all(value is None or isinstance(value, int | float) for key, value in record.items() if key != "stage")
    )
