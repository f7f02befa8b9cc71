"""`run.json`: which format a run directory has, and whether what it says of the run can be so."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptcal._version import __version__
from promptcal.errors import RunError

FORMAT = 1
OLDEST_FORMAT = 1  # that this version reads


class _Info(BaseModel):
    """What other code relies on; anything else may be there as well."""

    model_config = ConfigDict(extra="allow", strict=True)

    status: str
    known_classes: list[str] = Field(default_factory=list)
    categories: list[str] = Field(default_factory=list)
    former_names: list[str] = Field(default_factory=list)
    resize: int = Field(1, ge=1, le=100_000)
    root: str | None = None
    folder: str | None = None
    started_from: str | None = None
    fingerprint: str = ""
    launch: str | None = None
    sha256: dict[str, str] = Field(default_factory=dict)


def read_info(file: Path) -> dict[str, Any]:
    """What a `run.json` says, or a `RunError` with what to do about it."""
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(info, dict):
            raise ValueError(f"it holds a {type(info).__name__}")
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8
        raise _damaged(file, str(error)) from error
    check_format(info.get("format"), FORMAT, OLDEST_FORMAT, str(file.parent), str(info.get("promptcal", ""))[:40])
    try:
        _Info.model_validate(info)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _damaged(file, f"{where}: {first['msg']}".removeprefix(": ").removeprefix("Value error, ")) from error
    return info


def check_complete(info: dict[str, Any], file: Path) -> None:
    """Refuse a finished run that does not say what its results mean."""
    for name in ("known_classes", "categories", "resize"):
        if name not in info:
            raise _damaged(file, f"it does not say {name}")
    categories = info["categories"]
    if not categories or len(set(categories)) < len(categories):
        raise _damaged(file, "categories must be there, each once")
    if not set(info["known_classes"]) <= set(categories):
        raise _damaged(file, "known_classes must be among the categories")


def check_format(found: Any, newest: int, oldest: int, what: str, made_by: str = "") -> None:
    """Refuse what this version cannot read: what has no format, one that is none, one too old or too new."""
    if isinstance(found, int) and not isinstance(found, bool) and found >= 1:
        if oldest <= found <= newest:
            return
        by = f" (made by promptcal {made_by})" if made_by else ""
        if found > newest:
            raise RunError(
                f"{what} has format {found}{by} and promptcal {__version__} reads up to {newest}; upgrade promptcal"
            )
        raise RunError(
            f"{what} has format {found}{by} and promptcal {__version__} reads {oldest} and later; "
            "use an older version, or fit again"
        )
    told = "no format" if found is None else f"the format {str(found)[:40]!r}, which is none"
    raise RunError(f"{what} has {told}, so it is damaged or not of promptcal; fit again with --overwrite")


def _damaged(file: Path, why: str) -> RunError:
    return RunError(f"{file} is damaged ({' '.join(why.split())[:200]}); fit again with --overwrite")
